import com.google.gson.Gson;
import io.grpc.CallOptions;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.xds.XdsNameResolverProvider;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Opens one channel per item of standard input, each as an xDS client of its own.
 *
 * <p>The input is a line of JSON: [[target, bootstrap], ...]. The output is one line of JSON per call, with the number
 * of the channel and the status. The process ends at the end of the input.
 */
public final class GrpcChannels {
    private static final int TIMEOUT_SECONDS = 20;
    private static final int PAUSE_MS = 500;
    private static final Gson GSON = new Gson();

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static void report(int channel, Status status) {
        var details = status.getDescription() == null ? "" : status.getDescription();
        if (status.getCause() != null) {
            details += " (" + status.getCause() + ")";
        }
        System.out.println(GSON.toJson(
                Map.of("channel", channel, "code", status.getCode().name(), "details", details)));
    }

    /** Calls forever. A scheme of its own gives each channel its own bootstrap. */
    private static void call(int number, String target, String bootstrap) {
        var scheme = "xds" + number;
        NameResolverRegistry.getDefaultRegistry().register(
                XdsNameResolverProvider.createForTest(scheme, GSON.fromJson(bootstrap, Map.class)));
        var method = MethodDescriptor.newBuilder(new Bytes(), new Bytes())
                .setType(MethodDescriptor.MethodType.UNARY).setFullMethodName("corpus.Greeter/Hello").build();
        var channel = Grpc.newChannelBuilder(
                target.replaceFirst("^xds:", scheme + ":"), InsecureChannelCredentials.create()).build();
        while (true) {
            var status = Status.OK;
            try {
                var options = CallOptions.DEFAULT.withDeadlineAfter(TIMEOUT_SECONDS, TimeUnit.SECONDS);
                ClientCalls.blockingUnaryCall(channel, method, options, new byte[0]);
            } catch (RuntimeException error) {
                status = Status.fromThrowable(error);
            }
            report(number, status);
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    public static void main(String[] args) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in));
        var channels = GSON.fromJson(input.readLine(), String[][].class);
        for (int i = 0; i < channels.length; i++) {
            var number = i;
            new Thread(() -> call(number, channels[number][0], channels[number][1])).start();
        }
        while (input.readLine() != null) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }
}
