/* Says how tacit protects a connection of this program.
 *
 *   cc -o query query.c
 *   tacit run --policy policy.toml -- ./query HOST PORT
 */
#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Asks the agent about a connected socket. Returns the bytes of the answer, or -1. */
static ssize_t ask(int connection, const char *question, char *answer, size_t room)
{
    const char *name = getenv("TACIT_QUERY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (name == NULL || strlen(name) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, name);
    if (name[0] == '@') /* stands for the byte 0 of an abstract name */
        address.sun_path[0] = '\0';
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + strlen(name);

    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &connection, sizeof connection);
    struct iovec text = {(void *)question, strlen(question)};
    struct msghdr message = {
        .msg_iov = &text,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };

    ssize_t count = -1;
    int agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (agent >= 0 && connect(agent, (struct sockaddr *)&address, length) == 0 &&
        sendmsg(agent, &message, MSG_NOSIGNAL) > 0)
        count = recv(agent, answer, room, 0);
    if (agent >= 0)
        close(agent);
    return count > 0 ? count : -1;
}

int main(int count, char **arguments)
{
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    if (count != 3 || getaddrinfo(arguments[1], arguments[2], &wanted, &found) != 0) {
        fprintf(stderr, "usage: query HOST PORT\n");
        return 64;
    }
    int connection = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(connection, found->ai_addr, found->ai_addrlen) != 0) {
        perror("connect");
        return 1;
    }
    char answer[16385];
    ssize_t length;
    for (;;) {
        length = ask(connection, "query", answer, sizeof answer - 1);
        if (length < 0) {
            perror("TACIT_QUERY");
            return 1;
        }
        answer[length] = '\0';
        if (strstr(answer, "\"connection\":\"handshaking\"") == NULL)
            break;
        usleep(10000);
    }
    fputs(answer, stdout);
    return strstr(answer, "\"connection\":\"secure\"") != NULL ? 0 : 1;
}
