# Decrypts the capture with the keys of both directions, then with others.
key() { printf "$1%.0s" $(seq 36); }
# entry SOURCE DESTINATION SPI KEY: a row of tshark's table of keys.
entry() {
    echo "uat:esp_sa:\"IPv4\",\"$1\",\"$2\",\"$3\",\"AES-GCM with 16 octet ICV [RFC4106]\",\"0x$(key "$4")\",\"NULL\",\"\""
}
# decrypted KEY KEY FILTER: counts packets.
decrypted() {
    tshark -r wire.pcap -d tcp.port==9301,data -d udp.port==9302,data \
        -o esp.enable_encryption_decode:TRUE -o esp.enable_authentication_check:TRUE \
        -o "$(entry 10.99.0.2 10.99.0.1 0x00001003 "$1")" \
        -o "$(entry 10.99.0.1 10.99.0.2 0x00001004 "$2")" \
        -Y "$3" 2>/dev/null | wc -l
}
all=$(decrypted 03 04 esp)
good=$(decrypted 03 04 'esp.icv_good == 1 and not _ws.malformed')
wrong=$(decrypted 05 06 'esp.icv_good == 1')
[ "$all" -gt 5000 ] && [ "$good" = "$all" ] && [ "$wrong" = 0 ] ||
    fail "decrypted $good of $all, $wrong with another key"
