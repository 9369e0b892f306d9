/* Resolves its argument by the C library's resolver. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct addrinfo hints, *found;
    char text[INET6_ADDRSTRLEN];

    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (argc != 2 || getaddrinfo(argv[1], NULL, &hints, &found) != 0)
        return 1;
    puts(inet_ntop(AF_INET, &((struct sockaddr_in *)found->ai_addr)->sin_addr, text, sizeof text));
    return 0;
}
