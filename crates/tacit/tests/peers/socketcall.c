#define _GNU_SOURCE
// Connects, binds, sends and sets options by socketcall, the 32-bit form of these calls, from a
// 64-bit program.
//   socketcall PERMITTED DENIED
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BIND = 2, CONNECT = 3, LISTEN = 4, SENDTO = 11, SETSOCKOPT = 14 };

// Memory with addresses of 32 bits.
static struct {
    uint32_t arguments[6];
    struct sockaddr_in to;
    char text[8];
} *low;

static uint32_t low_address(void *at)
{
    return (uint32_t)(uintptr_t)at;
}

static const char *call(int number)
{
    long result;
    asm volatile("int $0x80"
                 : "=a"(result)
                 : "a"(102), "b"((long)number), "c"((long)low_address(low->arguments))
                 : "memory", "r8", "r9", "r10", "r11");
    return (int)result < 0 ? strerrorname_np(-(int)result) : "0";
}

static const char *addressed(int number, int s, const char *host, int port)
{
    low->to = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
    inet_pton(AF_INET, host, &low->to.sin_addr);
    uint32_t arguments[] = { s, low_address(&low->to), sizeof low->to };
    memcpy(low->arguments, arguments, sizeof arguments);
    return call(number);
}

static const char *option(int s, int name, const char *value, int length)
{
    memcpy(low->text, value, length);
    uint32_t arguments[] = { s, IPPROTO_IP, name, low_address(low->text), length };
    memcpy(low->arguments, arguments, sizeof arguments);
    return call(SETSOCKOPT);
}

// A socket that is unconnected again after its connection was refused.
static int failed(const char *host)
{
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    addressed(CONNECT, s, host, 81);
    struct pollfd ready = { .fd = s, .events = POLLOUT };
    poll(&ready, 1, 3000);
    int error;
    socklen_t length = sizeof error;
    getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length);
    return s;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    const char *good = arguments[1], *denied = arguments[2];
    low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    printf("permitted: %s\n", addressed(CONNECT, s, good, 7000));
    printf("again: %s\n", addressed(CONNECT, s, good, 7000));
    strcpy(low->text, "text");
    uint32_t sends[] = { s, low_address(low->text), 4, 0, 0, 0 };
    memcpy(low->arguments, sends, sizeof sends);
    call(SENDTO);
    char echoed[4];
    printf("echoed: %zd\n", recv(s, echoed, sizeof echoed, MSG_WAITALL));
    // IPv4 options without effect, which every user may set.
    printf("options: %s\n", option(s, IP_OPTIONS, "\1\1\1\1", 4));
    printf("type of service: %s\n", option(s, IP_TOS, "\20\0\0", 4));
    s = socket(AF_INET, SOCK_STREAM, 0);
    printf("own options: %s\n", option(s, IP_OPTIONS, "\1\1\1\1", 4));
    s = socket(AF_INET, SOCK_STREAM, 0);
    printf("denied: %s\n", addressed(CONNECT, s, denied, 8085));
    s = failed(good);
    addressed(CONNECT, s, denied, 8085);
    struct pollfd ready = { .fd = s, .events = POLLOUT };
    poll(&ready, 1, 3000);
    printf("denied after failed: %s\n", addressed(CONNECT, s, denied, 8085));
    s = failed(good);
    low->to.sin_port = htons(8085);
    inet_pton(AF_INET, denied, &low->to.sin_addr);
    uint32_t opens[] = {
        s, low_address(low->text), 4, MSG_FASTOPEN, low_address(&low->to), sizeof low->to,
    };
    memcpy(low->arguments, opens, sizeof opens);
    printf("fast open: %s\n", call(SENDTO));
    s = socket(AF_INET, SOCK_STREAM, 0);
    printf("bind: %s\n", addressed(BIND, s, "0.0.0.0", 0));
    low->arguments[1] = 5;
    printf("listen: %s\n", call(LISTEN));
    return 0;
}
