/* A thread pool for many short parallel regions on cores that other processes use too.
 *
 * A region is n chunks, claimed one by one; the caller claims as well and waits only for chunks
 * that somebody has begun, so a worker that is asleep or preempted costs nothing. Workers spin
 * for SPIN_NS after their last chunk and then sleep: an idle process uses no CPU.
 *
 * `ticket` holds (generation << 32 | chunks left). Claiming is a compare-and-swap on it: when it
 * succeeds, the region still has an unfinished chunk (ours), so fn, arg and n stay valid. */
#ifndef KVTOP_POOL_H
#define KVTOP_POOL_H
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define SPIN_NS 60000
#define MAX_THREADS 64
typedef void (*chunk_fn)(void *arg, long chunk);

static struct {
    _Alignas(64) atomic_ulong ticket;
    _Alignas(64) atomic_long done;
    _Alignas(64) atomic_int sleeping;
    chunk_fn fn;
    void *arg;
    long n;
    int threads, started;
    pthread_mutex_t lock, busy;
    pthread_cond_t wake;
} pool = {.threads = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .busy = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER};

static inline void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
static inline long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static int pool_step(void) { /* run one chunk; 0 when none is left */
    unsigned long t = atomic_load_explicit(&pool.ticket, memory_order_acquire);
    while ((uint32_t)t) {
        if (atomic_compare_exchange_weak(&pool.ticket, &t, t - 1)) {
            pool.fn(pool.arg, pool.n - (long)(uint32_t)t);
            atomic_fetch_add_explicit(&pool.done, 1, memory_order_release);
            return 1;
        }
    }
    return 0;
}
static void *pool_worker(void *unused) {
    (void)unused;
    for (;;) {
        long quiet_since = 0;
        while (1) {
            if (pool_step()) { quiet_since = 0; continue; }
            for (int i = 0; i < 32; i++) cpu_pause();
            long t = now_ns();
            if (!quiet_since) quiet_since = t;
            else if (t - quiet_since > SPIN_NS) break;
        }
        pthread_mutex_lock(&pool.lock);
        for (;;) { /* announced before every look: the ticket may run out between two looks */
            atomic_store(&pool.sleeping, 1);
            if ((uint32_t)atomic_load(&pool.ticket)) break;
            pthread_cond_wait(&pool.wake, &pool.lock);
        }
        pthread_mutex_unlock(&pool.lock);
    }
    return NULL;
}
/* After fork the child has no workers: it starts its own at its first region. */
static void pool_after_fork(void) {
    pool.started = 0;
    atomic_store(&pool.ticket, 0);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_mutex_init(&pool.busy, NULL);
    pthread_cond_init(&pool.wake, NULL);
}
static void pool_start(void) {
    static int hooked;
    if (!hooked) { pthread_atfork(NULL, NULL, pool_after_fork); hooked = 1; }
    while (pool.started < pool.threads - 1) {
        pthread_t id;
        if (pthread_create(&id, NULL, pool_worker, NULL)) { pool.threads = pool.started + 1; break; }
        pthread_detach(id);
        pool.started++;
    }
}
/* Run fn(arg, 0 .. n-1) on all threads; serially when another thread of the process is inside. */
static void pool_run(chunk_fn fn, void *arg, long n) {
    if (n <= 1 || pool.threads == 1 || pthread_mutex_trylock(&pool.busy)) {
        for (long i = 0; i < n; i++) fn(arg, i);
        return;
    }
    if (pool.started < pool.threads - 1) pool_start();
    pool.fn = fn;
    pool.arg = arg;
    pool.n = n;
    atomic_store(&pool.done, 0);
    unsigned long generation = (atomic_load(&pool.ticket) >> 32) + 1;
    atomic_store(&pool.ticket, generation << 32 | (uint32_t)n);
    if (atomic_load(&pool.sleeping) && atomic_exchange(&pool.sleeping, 0)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    while (pool_step()) {}
    for (long spins = 0; atomic_load_explicit(&pool.done, memory_order_acquire) < n; spins++) {
        if (spins < 4000) cpu_pause();
        else sched_yield(); /* the other thread was preempted, perhaps by us */
    }
    pthread_mutex_unlock(&pool.busy);
}
#endif
