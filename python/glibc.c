// What the libraries of the wheel take from glibc and glibc 2.28 does not have. Where the machine's
// glibc has it, that one is found first.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// False is right for programs with one thread, too.
char __libc_single_threaded = 0;

// The kernel's struct stat is glibc's.
int fstatat(int directory, const char* path, struct stat* to, int flags) {
  return (int)syscall(SYS_newfstatat, directory, path, to, flags);
}

int stat(const char* path, struct stat* to) { return fstatat(AT_FDCWD, path, to, 0); }

int lstat(const char* path, struct stat* to) {
  return fstatat(AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat* to) { return (int)syscall(SYS_fstat, file, to); }

int fstat64(int, struct stat64*) __attribute__((alias("fstat")));

uint32_t arc4random(void) {
  uint32_t word;
  ssize_t got;
  do {
    got = getrandom(&word, sizeof(word), 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(word)) abort();
  return word;
}

// The deadline in the clock that pthread_cond_timedwait() has.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* deadline) {
  const long kSecond = 1000000000;
  if (deadline->tv_nsec < 0 || deadline->tv_nsec >= kSecond) return EINVAL;
  struct timespec until = *deadline;
  if (clock != CLOCK_REALTIME) {
    struct timespec now, real;
    if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return EINVAL;
    until.tv_sec += real.tv_sec - now.tv_sec;
    until.tv_nsec += real.tv_nsec - now.tv_nsec;
    if (until.tv_nsec < 0) {
      --until.tv_sec;
      until.tv_nsec += kSecond;
    } else if (until.tv_nsec >= kSecond) {
      ++until.tv_sec;
      until.tv_nsec -= kSecond;
    }
  }
  return pthread_cond_timedwait(condition, mutex, &until);
}
