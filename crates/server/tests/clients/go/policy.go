package main

import (
	"encoding/json"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/serviceconfig"
)

// preferBuilder builds the custom policy myorg.Prefer, which sends all calls to the endpoint of its
// configuration: {"address": "127.0.0.1:80"}.
type preferBuilder struct{}

type preferConfig struct {
	serviceconfig.LoadBalancingConfig `json:"-"`

	Address string `json:"address"`
}

func (preferBuilder) Name() string { return "myorg.Prefer" }

func (preferBuilder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	config := &preferConfig{}
	if err := json.Unmarshal(text, config); err != nil {
		return nil, err
	}
	return config, nil
}

func (preferBuilder) Build(cc balancer.ClientConn, options balancer.BuildOptions) balancer.Balancer {
	p := &prefer{ClientConn: cc}
	child := balancer.Get(pickfirst.Name).Build
	p.Balancer = endpointsharding.NewBalancer(p, options, child, endpointsharding.Options{})
	return p
}

// prefer has a child per endpoint, and passes on the state of only one.
type prefer struct {
	balancer.ClientConn
	balancer.Balancer

	address string
}

func (p *prefer) UpdateClientConnState(state balancer.ClientConnState) error {
	config, ok := state.BalancerConfig.(*preferConfig)
	if !ok {
		return balancer.ErrBadResolverState
	}
	// The children call UpdateState during this call, or later.
	p.address = config.Address
	return p.Balancer.UpdateClientConnState(balancer.ClientConnState{ResolverState: state.ResolverState})
}

func (p *prefer) UpdateState(state balancer.State) {
	for _, child := range endpointsharding.ChildStatesFromPicker(state.Picker) {
		if child.Endpoint.Addresses[0].Addr == p.address {
			state = child.State
		}
	}
	p.ClientConn.UpdateState(state)
}
