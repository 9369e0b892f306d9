// Resolves its argument by Go's own resolver.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	addresses, err := net.LookupHost(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(addresses[0])
}
