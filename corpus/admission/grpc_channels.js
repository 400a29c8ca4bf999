// Opens one channel per item of standard input, each as an xDS client of its own.
//
// The input is a line of JSON: [[target, bootstrap], ...]. The output is one line of JSON per call, with the
// number of the channel and the status. The process ends at the end of the input. It needs NODE_PATH in its
// environment.
"use strict";

const readline = require("readline");
const grpc = require("@grpc/grpc-js");
const grpcXds = require("@grpc/grpc-js-xds");

const BOOTSTRAP = "grpc.TEST_ONLY_DO_NOT_USE_IN_PROD.xds_bootstrap_config";
const PAUSE_MS = 500;
const TIMEOUT_MS = 20_000;

grpcXds.register();

const bytes = (value) => value;

function call(channel, client) {
  const options = { deadline: Date.now() + TIMEOUT_MS };
  const done = (error) => {
    const status = error ? { code: grpc.status[error.code], details: error.details } : { code: "OK", details: "" };
    console.log(JSON.stringify({ channel, ...status }));
    setTimeout(call, PAUSE_MS, channel, client);
  };
  client.makeUnaryRequest("/corpus.Greeter/Hello", bytes, bytes, Buffer.alloc(0), new grpc.Metadata(), options, done);
}

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", (line) => {
  JSON.parse(line).forEach(([target, bootstrap], channel) => {
    call(channel, new grpc.Client(target, grpc.credentials.createInsecure(), { [BOOTSTRAP]: bootstrap }));
  });
});
lines.on("close", () => process.exit(0));
