/* The CPU kernels of KVTop as one shared library; see the headers for the contracts. */
#define _GNU_SOURCE
#include "stack.h"

#define API __attribute__((visibility("default")))

API const char *kvtop_isa(void) { return KVTOP_ISA; }
API void kvtop_set_threads(int n) { pool.threads = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n; }
API int kvtop_threads(void) { return pool.threads; }

API void kvtop_linear(const Linear *l, const float *x, long ldx, float *y, long ldy, long m) {
    linear_run(l, x, ldx, y, ldy, m);
}
API void kvtop_norm(float *x, const float *add, const float *w, float *out, long m, long n,
                    long ldx, long ldadd, long ldout, float eps) {
    norm_run((NormJob){x, add, w, out, m, n, ldx, ldadd, ldout, 0, eps});
}
API void kvtop_rope(const int64_t *positions, const float *cos_sin, float *q, float *k, long m,
                    long q_heads, long kv_heads, long head_dim, long rotary, long ldq, long ldk) {
    rope_run((RopeJob){positions, NULL, cos_sin, q, k, NULL, NULL, NULL, m, q_heads, kv_heads,
                       head_dim, rotary, ldq, ldk, 0, 0, 0});
}
API void kvtop_store_kv(const int64_t *slots, const float *k, const float *v, float *k_pool,
                        float *v_pool, long m, long width, long ldk, long ldv, long pool_slot) {
    rope_run((RopeJob){NULL, slots, NULL, NULL, (float *)k, v, k_pool, v_pool, m, 0, 1, width, 0,
                       0, ldk, ldv, pool_slot, 0});
}
API void kvtop_silu_and_mul(const float *x, float *out, long m, long n, long ldx) {
    SiluJob j = {x, out, m, n, ldx, rows_per_chunk(2 * n)};
    pool_run(silu_chunk, &j, (m + j.per_chunk - 1) / j.per_chunk);
}
API void kvtop_attention(const Attention *a) { attention_run(a); }
API long kvtop_stack_workspace(const Stack *s, const Attention *a) { return stack_workspace(s, a); }
API void kvtop_stack(const Stack *s, const Attention *a, const int64_t *positions,
                     const int64_t *slots, float *x, float *out, float *work, long m) {
    stack_run(s, a, positions, slots, x, out, work, m);
}
typedef struct { const float *x; int64_t *out; long n, ldx; } ArgmaxJob;
static void argmax_row(void *arg, long r) { /* the first of equal maxima */
    ArgmaxJob *j = arg;
    const float *x = j->x + r * j->ldx;
    v16 top = v_set1(-INFINITY);
    float t[LANES], m = -INFINITY;
    long i = 0;
    for (; i + LANES <= j->n; i += LANES) top = v_max(top, v_load(x + i));
    v_store(t, top);
    for (int l = 0; l < LANES; l++) m = t[l] > m ? t[l] : m;
    for (; i < j->n; i++) m = x[i] > m ? x[i] : m;
    for (i = 0; i < j->n && x[i] != m; i++) {}
    j->out[r] = i < j->n ? i : 0;
}
API void kvtop_argmax(const float *x, int64_t *out, long m, long n, long ldx) {
    ArgmaxJob j = {x, out, n, ldx};
    pool_run(argmax_row, &j, m);
}
