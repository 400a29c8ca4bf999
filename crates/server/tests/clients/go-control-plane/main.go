// An xDS server: go-control-plane with its snapshot cache, as a second server for the conformance kit.
//
// It is its own adapter: `chancery conformance --adapter-command` starts it and writes the states of nodes to its
// standard input (docs/conformance-kit.md). It ends at the end of standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extension "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtime "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secret "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// state is everything that one node sees.
type state struct {
	Node  string `json:"node"`
	Types []struct {
		TypeURL   string `json:"type_url"`
		Version   string `json:"version"`
		Resources []struct {
			Name  string `json:"name"`
			Bytes []byte `json:"bytes"`
		} `json:"resources"`
	} `json:"types"`
}

func snapshot(line []byte) (string, *cache.Snapshot, error) {
	var wanted state
	if err := json.Unmarshal(line, &wanted); err != nil {
		return "", nil, err
	}
	snapshot := &cache.Snapshot{}
	for index := range snapshot.Resources {
		snapshot.Resources[index] = cache.NewResources("0", nil)
	}
	for _, kind := range wanted.Types {
		items := map[string]types.ResourceWithTTL{}
		for _, resource := range kind.Resources {
			message, err := (&anypb.Any{TypeUrl: kind.TypeURL, Value: resource.Bytes}).UnmarshalNew()
			if err != nil {
				return "", nil, err
			}
			items[resource.Name] = types.ResourceWithTTL{Resource: message}
		}
		index := cache.GetResponseType(kind.TypeURL)
		if index == types.UnknownType {
			return "", nil, fmt.Errorf("the cache does not know %s", kind.TypeURL)
		}
		snapshot.Resources[index] = cache.Resources{Version: kind.Version, Items: items}
	}
	return wanted.Node, snapshot, nil
}

func serve(xds, rest string, snapshots cache.SnapshotCache) error {
	xdsListener, err := net.Listen("tcp", xds)
	if err != nil {
		return err
	}
	restListener, err := net.Listen("tcp", rest)
	if err != nil {
		return err
	}
	xdsServer := server.NewServer(context.Background(), snapshots, nil)
	services := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(services, xdsServer)
	cluster.RegisterClusterDiscoveryServiceServer(services, xdsServer)
	endpoint.RegisterEndpointDiscoveryServiceServer(services, xdsServer)
	listener.RegisterListenerDiscoveryServiceServer(services, xdsServer)
	route.RegisterRouteDiscoveryServiceServer(services, xdsServer)
	route.RegisterScopedRoutesDiscoveryServiceServer(services, xdsServer)
	route.RegisterVirtualHostDiscoveryServiceServer(services, xdsServer)
	secret.RegisterSecretDiscoveryServiceServer(services, xdsServer)
	runtime.RegisterRuntimeDiscoveryServiceServer(services, xdsServer)
	extension.RegisterExtensionConfigDiscoveryServiceServer(services, xdsServer)
	gateway := server.HTTPGateway{Server: xdsServer}
	polls := http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		body, code, err := gateway.ServeHTTP(request)
		if err != nil {
			http.Error(answer, err.Error(), code)
			return
		}
		answer.Header().Set("content-type", "application/json")
		answer.WriteHeader(code)
		_, _ = answer.Write(body)
	})
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	restServer := &http.Server{Handler: polls, Protocols: &protocols}
	go func() { _ = restServer.Serve(restListener) }()
	go func() { _ = services.Serve(xdsListener) }()
	return nil
}

func run() error {
	xds := flag.String("xds", "127.0.0.1:9000", "address of gRPC streams")
	rest := flag.String("rest", "127.0.0.1:9001", "address of REST polls")
	flag.Parse()
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	if err := serve(*xds, *rest, snapshots); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		node, wanted, err := snapshot(lines.Bytes())
		if err == nil {
			err = snapshots.SetSnapshot(context.Background(), node, wanted)
		}
		answer := map[string]string{}
		if err != nil {
			answer["error"] = err.Error()
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		fmt.Println(string(text))
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
