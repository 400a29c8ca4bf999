// kitex-client reads a listener, its routes, its cluster and its endpoints with the xDS manager of Kitex, as the router of
// Kitex does. It sends an HTTP request to the endpoint, and prints each answer that differs from the previous one.
//
// Arguments: XDS_ADDRESS LISTENER [nds]. With `nds`, the manager first waits for the name table.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/kitex-contrib/xds/core/manager"
	"github.com/kitex-contrib/xds/core/xdsresource"
)

var web = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func main() {
	for name, value := range map[string]string{"POD_NAMESPACE": "default", "POD_NAME": "kitex-1", "INSTANCE_IP": "127.0.0.1"} {
		if err := os.Setenv(name, value); err != nil {
			log.Fatal(err)
		}
	}
	config := &manager.XDSServerConfig{SvrAddr: os.Args[1], SvrName: "chancery", NDSNotRequired: len(os.Args) < 4}
	xds, err := manager.NewXDSResourceManager(nil, manager.Option{F: func(o *manager.Options) { o.XDSSvrConfig = config }})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	last := ""
	for {
		answer, err := ask(xds.Get, os.Args[2])
		if err != nil {
			log.Print(err)
			answer = "nothing"
		}
		if answer != last {
			fmt.Println(answer)
			last = answer
		}
		time.Sleep(100 * time.Millisecond)
	}
}

type getter = func(context.Context, xdsresource.ResourceType, string) (any, error)

// resource returns a resource. The manager returns nil for an absent listener.
func resource[T any](get getter, kind xdsresource.ResourceType, name string) (*T, error) {
	found, err := get(context.Background(), kind, name)
	if err != nil {
		return nil, err
	}
	if resource, ok := found.(*T); ok && resource != nil {
		return resource, nil
	}
	return nil, fmt.Errorf("%s is absent", name)
}

func ask(get getter, name string) (string, error) {
	listener, err := resource[xdsresource.ListenerResource](get, xdsresource.ListenerType, name)
	if err != nil {
		return "", err
	}
	if len(listener.NetworkFilters) == 0 {
		return "", errors.New("the listener has no filter")
	}
	routes, err := resource[xdsresource.RouteConfigResource](get, xdsresource.RouteConfigType, listener.NetworkFilters[0].RouteConfigName)
	if err != nil {
		return "", err
	}
	picked := routes.HTTPRouteConfig.VirtualHosts[0].Routes[0].WeightedClusters[0].Name
	cluster, err := resource[xdsresource.ClusterResource](get, xdsresource.ClusterType, picked)
	if err != nil {
		return "", err
	}
	endpoints, err := resource[xdsresource.EndpointsResource](get, xdsresource.EndpointsType, cluster.EndpointName)
	if err != nil {
		return "", err
	}
	response, err := web.Get("http://" + endpoints.Localities[0].Endpoints[0].Addr().String() + "/")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
