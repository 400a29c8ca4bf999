// A proxyless gRPC client that makes calls continuously, through one channel per target.
//
// It answers each line of standard input with one line, the results of the calls since the last one:
// {"answers": {text: count}, "failed": {reason: count}}. It ends at the end of standard input.
// It needs GRPC_XDS_BOOTSTRAP in its environment, and the targets as its arguments.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

const (
	pause = 2 * time.Millisecond
	// Long enough for a busy machine. A longer call counts as failed.
	timeout = 10 * time.Second
)

// raw is a codec that passes messages as plain bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

type counts struct {
	Answers map[string]int `json:"answers"`
	Failed  map[string]int `json:"failed"`
}

func newCounts() *counts {
	return &counts{Answers: map[string]int{}, Failed: map[string]int{}}
}

type tally struct {
	mu     sync.Mutex
	counts *counts
}

func (t *tally) record(answer string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.counts.Answers[answer]++
		return
	}
	s := status.Convert(err)
	t.counts.Failed[fmt.Sprintf("%s: %s", s.Code(), s.Message())]++
}

func (t *tally) take() *counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.counts
	t.counts = newCounts()
	return taken
}

func callForEver(conn *grpc.ClientConn, t *tally) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		var request, answer []byte
		err := conn.Invoke(ctx, "/e2e.Greeter/Hello", &request, &answer, grpc.ForceCodec(raw{}))
		cancel()
		t.record(string(answer), err)
		time.Sleep(pause)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: %s TARGET…", os.Args[0])
	}
	t := &tally{counts: newCounts()}
	for _, target := range os.Args[1:] {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		go callForEver(conn, t)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		line, err := json.Marshal(t.take())
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
