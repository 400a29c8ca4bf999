// Writes the descriptors of the resources that istiod reads over MCP to the standard output: an encoded
// FileDescriptorSet without the files of google/protobuf, which each set of descriptors has, and without aliases of them.
package main

import (
	"log"
	"os"
	"slices"
	"strings"

	_ "istio.io/api/extensions/v1alpha1"
	_ "istio.io/api/networking/v1alpha3"
	_ "istio.io/api/networking/v1beta1"
	_ "istio.io/api/security/v1beta1"
	_ "istio.io/api/telemetry/v1alpha1"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	var set descriptorpb.FileDescriptorSet
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(file.Path(), "google/protobuf/") && !strings.HasPrefix(file.Path(), "github.com/") {
			set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
		}
		return true
	})
	slices.SortFunc(set.File, func(a, b *descriptorpb.FileDescriptorProto) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(&set)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(encoded); err != nil {
		log.Fatal(err)
	}
}
