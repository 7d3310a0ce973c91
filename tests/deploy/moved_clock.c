/* Moves the clock of a process: the file that CLOCK_OFFSET_FILE names has the seconds to add. Loaded by LD_PRELOAD.
   Only the time of day is moved. Waits, which use the monotonic clock, stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

typedef int (*get_clock)(clockid_t, struct timespec *);

static int read_clock(clockid_t id, struct timespec *now) {
  static get_clock next;
  if (!next) next = (get_clock)dlsym(RTLD_NEXT, "clock_gettime");
  return next(id, now);
}

static char path[4096]; /* kept from the start: nginx clears the environment of its workers */

__attribute__((constructor)) static void keep_path(void) {
  const char *named = getenv("CLOCK_OFFSET_FILE");
  if (named) strncpy(path, named, sizeof path - 1);
}

static long offset(void) {
  static long seconds, checked = -1;
  struct timespec now;
  read_clock(CLOCK_MONOTONIC, &now);
  if (path[0] && now.tv_sec != checked) {
    FILE *file = fopen(path, "r");
    checked = now.tv_sec;
    if (file) {
      if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
      fclose(file);
    }
  }
  return seconds;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = read_clock(id, now);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return failed;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *restrict day, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  day->tv_sec = now.tv_sec;
  day->tv_usec = now.tv_nsec / 1000;
  return 0;
}
