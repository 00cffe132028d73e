/* Faults of one process, for tests: a slow disk, a slow network and a clock that is off. A library for LD_PRELOAD, so the program itself
 * contains none.
 *
 * A fault exists while a file with its name is in the folder that the variable FAULTS_FOLDER names:
 *
 *   slow-disk      every sync, and every write that is a sync (O_DSYNC), takes 800 ms longer
 *   slow-network   what arrives is read in pieces of at most 512 bytes, and each reading takes 10 ms longer
 *   clock-off      the wall clock is 600 s behind
 *
 * The system is called without the C library's own functions: the library is used before these can be looked up. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const long SYNC_DELAY_NANOS = 800 * 1000 * 1000;
static const long RECEIVE_DELAY_NANOS = 10 * 1000 * 1000;
static const size_t RECEIVED_MAX = 512;
static const time_t BEHIND_SECONDS = 600;

static int exists(const char *fault)
{
    char path[4096];
    const char *folder = getenv("FAULTS_FOLDER");
    if (folder == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, fault);
    return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
}

static void delay(long nanos)
{
    struct timespec left = {0, nanos};
    while (nanosleep(&left, &left) != 0) {
    }
}

static void delay_sync(void)
{
    if (exists("slow-disk"))
        delay(SYNC_DELAY_NANOS);
}

int fsync(int file)
{
    delay_sync();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    delay_sync();
    return (int)syscall(SYS_fdatasync, file);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
    if (fcntl(file, F_GETFL) & O_DSYNC)
        delay_sync();
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

ssize_t recv(int socket, void *bytes, size_t count, int flags)
{
    if (exists("slow-network")) {
        delay(RECEIVE_DELAY_NANOS);
        count = count < RECEIVED_MAX ? count : RECEIVED_MAX;
    }
    return syscall(SYS_recvfrom, socket, bytes, count, flags, NULL, NULL);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && exists("clock-off"))
        time->tv_sec -= BEHIND_SECONDS;
    return result;
}
