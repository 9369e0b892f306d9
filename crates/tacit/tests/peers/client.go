// A static Go client without C libraries: client HOST:PORT HTTP-HOST:PORT.
//
// It says what it sees of an echo server and of a web server.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

func main() {
	fmt.Println(talk(os.Args[1], 3_000_000))

	var all sync.WaitGroup
	ends := make([]string, 50)
	for i := range ends {
		all.Add(1)
		go func() {
			defer all.Done()
			ends[i] = talk(os.Args[1], 10_000+i)
		}()
	}
	all.Wait()
	for _, end := range ends {
		fmt.Println(end)
	}

	for _, path := range []string{"large", "absent", "small"} {
		answer, err := http.Get("http://" + os.Args[2] + "/" + path)
		if err != nil {
			fmt.Println(err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		fmt.Printf("%s %x %v\n", answer.Status, sha256.Sum256(body), err)
	}

	host, _, _ := net.SplitHostPort(os.Args[1])
	_, err := net.DialTimeout("tcp4", host+":9", 20*time.Second)
	fmt.Println(err)
}

// talk sends bytes while it reads them back, ends, and reads to the end.
func talk(to string, size int) string {
	stream, err := net.DialTimeout("tcp", to, 20*time.Second)
	if err != nil {
		return err.Error()
	}
	defer stream.Close()
	stream.SetDeadline(time.Now().Add(30 * time.Second))
	sent := bytes.Repeat([]byte("0123456"), size/7)
	go func() {
		stream.Write(sent)
		stream.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(stream)
	return fmt.Sprint(stream.RemoteAddr(), " ", bytes.Equal(sent, got), len(got), " ", err)
}
