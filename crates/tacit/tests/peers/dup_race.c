#define _GNU_SOURCE
// Duplicates a socket while another thread connects it.
//   dup_race HOST PORT ROUNDS
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_int begun, descriptor, duplicate;

static void *duplicates(void *unused)
{
    (void)unused;
    for (int round = 1;; round++) {
        while (atomic_load(&begun) < round)
            ;
        // Another moment in each round.
        for (volatile int wait = round * 97 % 30000; wait > 0; wait--)
            ;
        atomic_store(&duplicate, dup(atomic_load(&descriptor)));
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])) };
    inet_pton(AF_INET, arguments[1], &to.sin_addr);
    int rounds = atoi(arguments[3]), refused = 0, differ = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, duplicates, NULL);
    for (int round = 0; round < rounds; round++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        atomic_store(&duplicate, -1);
        atomic_store(&descriptor, s);
        atomic_fetch_add(&begun, 1);
        refused += connect(s, (void *)&to, sizeof to) != 0;
        while (atomic_load(&duplicate) < 0)
            ;
        // Both are one connection: the duplicate sends, and the socket receives.
        int d = atomic_load(&duplicate);
        char byte = 'x';
        differ += send(d, &byte, 1, MSG_NOSIGNAL) != 1 || recv(s, &byte, 1, 0) != 1;
        close(d);
        close(s);
    }
    printf("%d rounds, refused %d, differ %d\n", rounds, refused, differ);
    return 0;
}
