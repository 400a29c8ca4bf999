import com.linecorp.armeria.client.WebClient;
import com.linecorp.armeria.xds.ListenerSnapshot;
import com.linecorp.armeria.xds.SnapshotWatcher;
import com.linecorp.armeria.xds.XdsBootstrap;
import com.linecorp.armeria.xds.XdsType;
import com.linecorp.armeria.xds.client.endpoint.XdsHttpPreprocessor;
import com.google.protobuf.util.JsonFormat;
import io.envoyproxy.envoy.config.bootstrap.v3.Bootstrap;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;

/** Sends HTTP requests with Armeria, which reads its routes and endpoints over xDS. Arguments: BOOTSTRAP LISTENER. */
public final class Armeria {
    public static void main(String[] args) throws Exception {
        var bootstrap = Bootstrap.newBuilder();
        JsonFormat.parser().merge(Files.readString(Path.of(args[0])), bootstrap);
        var xds = XdsBootstrap.of(bootstrap.build());
        var client = WebClient.builder(XdsHttpPreprocessor.ofListener(args[1], xds))
                .responseTimeout(Duration.ofSeconds(2)).build();
        // The preprocessor continues to use the last listener after its removal. Only a watcher learns of it.
        var isMissing = new AtomicBoolean();
        xds.listenerRoot(args[1]).addSnapshotWatcher(new SnapshotWatcher<ListenerSnapshot>() {
            @Override
            public void snapshotUpdated(ListenerSnapshot snapshot) {
                isMissing.set(false);
            }

            @Override
            public void onMissing(XdsType type, String name) {
                isMissing.set(true);
            }
        });
        var last = "";
        while (true) {
            String answer;
            try {
                var response = client.get("/").aggregate().join();
                answer = !isMissing.get() && response.status().code() == 200 ? response.contentUtf8() : "nothing";
            } catch (Exception error) {
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
