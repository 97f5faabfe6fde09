/* The wall clock of one process: a preloaded library that adds an offset in seconds to the machine's clock. The offset is read
 * from the file WALL_CLOCK (8 bytes, native byte order). Monotonic clocks are unchanged. A wait until a time of this clock ends
 * at that time: the kernel, which knows only the machine's clock, would end it at once, again and again, or too late. */

#define _GNU_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t seconds_ahead(void) {
    static const volatile int64_t *ahead;
    static int looked;
    if (!looked) {
        /* The first call comes from the start of the program, before it has threads. */
        looked = 1;
        const char *path = getenv("WALL_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
            ahead = mapped == MAP_FAILED ? NULL : mapped;
            close(file);
        }
    }
    return ahead ? *ahead : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        time->tv_sec += seconds_ahead();
    }
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *out) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

/* In seconds. A monotonic clock counts from the start of the machine, so it never shows as much. */
#define EARLIEST_WALL_CLOCK 1000000000

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec deadline = *until;
    if (deadline.tv_sec >= EARLIEST_WALL_CLOCK) {
        struct timespec wall, now;
        clock_gettime(CLOCK_REALTIME, &wall);
        clock_gettime(CLOCK_MONOTONIC, &now);
        deadline.tv_sec += now.tv_sec - wall.tv_sec;
        deadline.tv_nsec += now.tv_nsec - wall.tv_nsec;
        while (deadline.tv_nsec < 0) {
            deadline.tv_nsec += 1000000000;
            deadline.tv_sec -= 1;
        }
        while (deadline.tv_nsec >= 1000000000) {
            deadline.tv_nsec -= 1000000000;
            deadline.tv_sec += 1;
        }
        if (deadline.tv_sec < 0) {
            deadline = (struct timespec){0, 0};
        }
    }
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &deadline);
}
