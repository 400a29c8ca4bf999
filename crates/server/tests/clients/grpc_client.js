// A proxyless gRPC client that makes calls continuously, through one channel per target.
//
// It answers each line of standard input with one line, the results of the calls since the last one:
// {"answers": {text: count}, "failed": {reason: count}}. It ends at the end of standard input.
// It needs GRPC_XDS_BOOTSTRAP and NODE_PATH in its environment, and the targets as its arguments.
// With XDS_TLS_DIR, it connects to the xDS server with the files ca.pem, client.pem and client.key of that
// directory. Bootstraps of grpc-js cannot name them, so that "insecure" there stands for these files.
// With CALL_USERS=N, the metadata "x-user" of the calls has N values in turn, and "user answer" is counted.
"use strict";

const readline = require("readline");
const grpc = require("@grpc/grpc-js");
const grpcXds = require("@grpc/grpc-js-xds");

const PAUSE_MS = 2;
// Long enough for a busy machine. A longer call counts as failed.
const TIMEOUT_MS = 10_000;

const N_USERS = Number(process.env.CALL_USERS || 0);

const TLS_DIR = process.env.XDS_TLS_DIR;
if (TLS_DIR) {
  // Only the xDS client takes its credentials from this class.
  grpc.ChannelCredentials.createInsecure = () => {
    const provider = new grpc.experimental.FileWatcherCertificateProvider({
      caCertificateFile: `${TLS_DIR}/ca.pem`,
      certificateFile: `${TLS_DIR}/client.pem`,
      privateKeyFile: `${TLS_DIR}/client.key`,
      refreshIntervalMs: 1000,
    });
    return grpc.experimental.createCertificateProviderChannelCredentials(provider, provider);
  };
}

grpcXds.register();

const bytes = (value) => value;
let tally = { answers: {}, failed: {} };

function count(map, key) {
  map[key] = (map[key] || 0) + 1;
}

let nCalls = 0;

function call(client) {
  const options = { deadline: Date.now() + TIMEOUT_MS };
  const metadata = new grpc.Metadata();
  let prefix = "";
  if (N_USERS > 0) {
    const user = `user-${nCalls++ % N_USERS}`;
    metadata.set("x-user", user);
    prefix = `${user} `;
  }
  const done = (error, answer) => {
    if (error) {
      count(tally.failed, `${grpc.status[error.code]}: ${error.details}`);
    } else {
      count(tally.answers, prefix + answer.toString());
    }
    setTimeout(call, PAUSE_MS, client);
  };
  client.makeUnaryRequest("/e2e.Greeter/Hello", bytes, bytes, Buffer.alloc(0), metadata, options, done);
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", () => {
  const taken = tally;
  tally = { answers: {}, failed: {} };
  process.stdout.write(`${JSON.stringify(taken)}\n`);
});
lines.on("close", () => process.exit(0));
for (const target of process.argv.slice(2)) {
  call(new grpc.Client(target, grpc.credentials.createInsecure()));
}
