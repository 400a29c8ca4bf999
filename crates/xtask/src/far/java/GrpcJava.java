import io.grpc.CallOptions;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.concurrent.TimeUnit;

/** Calls the greeter of the demo with grpc-java. Argument: TARGET. The bootstrap is the file in GRPC_XDS_BOOTSTRAP. */
public final class GrpcJava {
    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        var method = MethodDescriptor.newBuilder(new Bytes(), new Bytes())
                .setType(MethodDescriptor.MethodType.UNARY).setFullMethodName("demo.Greeter/Hello").build();
        var channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
        var last = "";
        while (true) {
            String answer;
            try {
                var options = CallOptions.DEFAULT.withDeadlineAfter(2, TimeUnit.SECONDS);
                answer = new String(ClientCalls.blockingUnaryCall(channel, method, options, new byte[0]));
            } catch (StatusRuntimeException error) {
                System.err.println(error);
                answer = "nothing";
            }
            if (!answer.equals(last)) {
                System.out.println(answer);
                last = answer;
            }
            Thread.sleep(100);
        }
    }
}
