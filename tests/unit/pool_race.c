/* Prints how many threads share a long region after many short ones.
 * Every look of the pool at its state is followed by a pause, which makes the rare interleavings
 * of wake-up and region end the common ones. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static _Thread_local unsigned seed;
static void busy_us(double us) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    do clock_gettime(CLOCK_MONOTONIC, &b);
    while ((b.tv_sec - a.tv_sec) * 1e6 + (b.tv_nsec - a.tv_nsec) / 1e3 < us);
}
static void pause_a_moment(void) {
    if (!seed) seed = (unsigned)(size_t)&seed;
    busy_us(rand_r(&seed) % 40);
}
#undef atomic_load
#define atomic_load(p) \
    ({ __auto_type seen = atomic_load_explicit(p, memory_order_seq_cst); pause_a_moment(); seen; })
#include "pool.h"

static pthread_t first;
static atomic_int others;
static void chunk(void *us, long i) {
    (void)i;
    if (!pthread_equal(pthread_self(), first)) atomic_store(&others, 1);
    busy_us(*(double *)us);
}
int main(void) {
    double shortly = 5, longly = 2000;
    first = pthread_self();
    pool.threads = 2;
    for (int i = 0; i < 4000; i++) {
        pool_run(chunk, &shortly, 2 + i % 8);
        busy_us(70 + i % 60); /* the worker spins 60 us, then sleeps */
    }
    atomic_store(&others, 0);
    for (int i = 0; i < 200 && !atomic_load_explicit(&others, memory_order_seq_cst); i++)
        pool_run(chunk, &longly, 16);
    printf("%d\n", 1 + atomic_load_explicit(&others, memory_order_seq_cst));
    return 0;
}
