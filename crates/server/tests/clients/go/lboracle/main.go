// The oracle of chancery-lb-policy: grpc-go's own conversion of load balancing policies.
//
// It reads lines with the hexadecimal bytes of an envoy.config.cluster.v3.LoadBalancingPolicy. For each, it
// writes "ok" with the service config, "convert" if the conversion fails, or "parse" if the LB policy
// registry rejects the result. The packages are internal to grpc-go, so the program is built as a package of
// grpc-go, in a copy (`cargo xtask setup`).

//go:build lb_oracle

package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	v3clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/internal/serviceconfig"
	"google.golang.org/grpc/internal/xds/xdsclient/xdslbregistry"
	_ "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"
)

// custom is a policy that accepts every configuration.
type custom struct{}

func (custom) Name() string { return "myorg.custom" }

func (custom) Build(balancer.ClientConn, balancer.BuildOptions) balancer.Balancer { return nil }

func answer(line string) string {
	bytes, err := hex.DecodeString(line)
	if err != nil {
		return "input " + err.Error()
	}
	policy := &v3clusterpb.LoadBalancingPolicy{}
	if err := proto.Unmarshal(bytes, policy); err != nil {
		return "input " + err.Error()
	}
	config, err := xdslbregistry.ConvertToServiceConfig(policy, 0)
	if err != nil {
		return "convert"
	}
	if err := json.Unmarshal(config, &serviceconfig.BalancerConfig{}); err != nil {
		return "parse"
	}
	var compact any
	if err := json.Unmarshal(config, &compact); err != nil {
		return "input " + err.Error()
	}
	text, err := json.Marshal(compact)
	if err != nil {
		return "input " + err.Error()
	}
	return "ok " + string(text)
}

func main() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(devNull{}, devNull{}, devNull{}))
	balancer.Register(custom{})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		fmt.Fprintln(out, answer(lines.Text()))
	}
	if err := out.Flush(); err != nil {
		os.Exit(1)
	}
}

type devNull struct{}

func (devNull) Write(bytes []byte) (int, error) { return len(bytes), nil }
