// A TLS peer of the tests: Go's crypto/tls.
//
//	peer client PORT,VERSION,BYTES...   one mutual connection after the other to localhost
//	peer server VERSION...              an echo for each version, client certificates required
//
// Certificates are those of the test's directory. A client sends its bytes while it reads them
// back, says `open` and waits for a line. Then it does the same with one byte, ends its own
// direction, reads on to an orderly end, and says `done` with what it read. A server says `port N` for each version; to the end of a
// client it answers `bye`. All end with their input.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

var input = bufio.NewReader(os.Stdin)

func main() {
	run := map[string]func(string) error{"client": client, "server": server}[os.Args[1]]
	for _, argument := range os.Args[2:] {
		if err := run(argument); err != nil {
			fmt.Println("failed:", argument, err)
			os.Exit(1)
		}
	}
	_, _ = io.Copy(io.Discard, input)
}

func config(identity, version string) (*tls.Config, error) {
	authority, err := os.ReadFile("ca.pem")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, errors.New("ca.pem holds no certificate")
	}
	pair, err := tls.LoadX509KeyPair(identity+".pem", identity+".key")
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ServerName:   "localhost",
		MinVersion:   versions[version],
		MaxVersion:   versions[version],
	}, err
}

func client(argument string) error {
	part := strings.Split(argument, ",")
	bytes, err := strconv.Atoi(part[2])
	if err != nil {
		return err
	}
	config, err := config("alice", part[1])
	if err != nil {
		return err
	}
	stream, err := tls.Dial("tcp", "127.0.0.1:"+part[0], config)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := swap(stream, bytes); err != nil {
		return err
	}
	fmt.Println("open")
	if _, err := input.ReadString('\n'); err != nil {
		return err
	}
	// Reads a KeyUpdate that is under way: this library cannot answer one after CloseWrite, and loses
	// its reading key if it should.
	if err := swap(stream, 1); err != nil {
		return err
	}
	if err := stream.CloseWrite(); err != nil {
		return err
	}
	rest, err := io.ReadAll(stream)
	if err != nil {
		return fmt.Errorf("no orderly end: %w", err)
	}
	fmt.Printf("done %s\n", rest)
	return nil
}

func swap(stream io.ReadWriter, bytes int) error {
	sent, got := make([]byte, bytes), make([]byte, bytes)
	for i := range sent {
		sent[i] = byte(i ^ i>>8 ^ i>>16)
	}
	// A failure to write shows as a failure to read.
	go stream.Write(sent)
	if _, err := io.ReadFull(stream, got); err != nil {
		return err
	}
	for i := range got {
		if got[i] != sent[i] {
			return fmt.Errorf("byte %d is wrong", i)
		}
	}
	return nil
}

func server(version string) error {
	config, err := config("localhost", version)
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	fmt.Println("port", listener.Addr().String()[len("127.0.0.1:"):])
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(stream.(*tls.Conn))
		}
	}()
	return nil
}

func serve(stream *tls.Conn) {
	_, err := io.Copy(stream, stream)
	_, _ = io.WriteString(stream, "bye")
	_ = stream.Close()
	fmt.Println("served", err)
}
