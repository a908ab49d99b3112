/* Row-wise kernels: RMSNorm, RoPE with the store into the KV pool, SiLU-and-multiply. */
#ifndef KVTOP_ROWS_H
#define KVTOP_ROWS_H
#include "pool.h"
#include "vec.h"

/* x += add (when given), kept in x; out = x / sqrt(mean(x^2) + eps) * w, or x when w is NULL. */
static void norm_row(float *x, const float *add, const float *w, float *out, long n, float eps) {
    v16 sum = v_zero();
    for (long i = 0; i < n; i += LANES) {
        long left = n - i;
        v16 v = left >= LANES ? v_load(x + i) : v_load_n(x + i, left);
        if (add) {
            v = v_add(v, left >= LANES ? v_load(add + i) : v_load_n(add + i, left));
            if (left >= LANES) v_store(x + i, v);
            else v_store_n(x + i, v, left);
        }
        sum = v_fma(v, v, sum);
    }
    if (!w) {
        if (out != x) memcpy(out, x, (size_t)n * sizeof(float));
        return;
    }
    float scale = 1.0f / sqrtf(v_sum(sum) / (float)n + eps);
    long i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(out + i, v_mul(v_mul(v_load(x + i), v_set1(scale)), v_load(w + i)));
    for (; i < n; i++) out[i] = x[i] * scale * w[i];
}
typedef struct {
    float *x;
    const float *add, *w;
    float *out;
    long m, n, ldx, ldadd, ldout, per_chunk;
    float eps;
} NormJob;
static void norm_chunk(void *arg, long c) {
    NormJob *j = arg;
    long end = (c + 1) * j->per_chunk < j->m ? (c + 1) * j->per_chunk : j->m;
    for (long r = c * j->per_chunk; r < end; r++)
        norm_row(j->x + r * j->ldx, j->add ? j->add + r * j->ldadd : NULL, j->w,
                 j->out + r * j->ldout, j->n, j->eps);
}
/* Rows so that a chunk is worth waking a thread: about 8,000 elements. */
static long rows_per_chunk(long n) { return n >= 8192 ? 1 : (8192 + n - 1) / n; }
static void norm_run(NormJob j) {
    j.per_chunk = rows_per_chunk(j.n);
    pool_run(norm_chunk, &j, (j.m + j.per_chunk - 1) / j.per_chunk);
}

/* Neox rotation of the first `rotary` elements of one head: (a, b) -> (a cos - b sin,
 * b cos + a sin), b half of `rotary` behind a; cs = cos[half], sin[half] of the position. */
static void rope_head(float *x, const float *cs, long rotary) {
    long half = rotary / 2, i = 0;
    const float *sn = cs + half;
    for (; i + LANES <= half; i += LANES) {
        v16 a = v_load(x + i), b = v_load(x + half + i), c = v_load(cs + i), s = v_load(sn + i);
        v_store(x + i, v_sub(v_mul(a, c), v_mul(b, s)));
        v_store(x + half + i, v_add(v_mul(b, c), v_mul(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i], p = a * cs[i], q = b * sn[i], r = b * cs[i], t = a * sn[i];
        x[i] = p - q;
        x[half + i] = r + t;
    }
}
typedef struct {
    const int64_t *positions, *slots; /* slots NULL: rotate only */
    const float *cos_sin;             /* [positions][rotary] */
    float *q, *k;
    const float *v;
    float *k_pool, *v_pool;
    long m, q_heads, kv_heads, head_dim, rotary, ldq, ldk, ldv, pool_slot, per_chunk;
} RopeJob;
static void rope_chunk(void *arg, long c) {
    RopeJob *j = arg;
    long end = (c + 1) * j->per_chunk < j->m ? (c + 1) * j->per_chunk : j->m;
    size_t bytes = (size_t)(j->kv_heads * j->head_dim) * sizeof(float);
    for (long r = c * j->per_chunk; r < end; r++) {
        if (j->rotary) {
            const float *cs = j->cos_sin + j->positions[r] * j->rotary;
            for (long h = 0; h < j->q_heads; h++)
                rope_head(j->q + r * j->ldq + h * j->head_dim, cs, j->rotary);
            for (long h = 0; h < j->kv_heads; h++)
                rope_head(j->k + r * j->ldk + h * j->head_dim, cs, j->rotary);
        }
        if (j->slots) {
            memcpy(j->k_pool + j->slots[r] * j->pool_slot, j->k + r * j->ldk, bytes);
            memcpy(j->v_pool + j->slots[r] * j->pool_slot, j->v + r * j->ldv, bytes);
        }
    }
}
static void rope_run(RopeJob j) {
    j.per_chunk = rows_per_chunk((j.q_heads + 3 * j.kv_heads) * j.head_dim);
    pool_run(rope_chunk, &j, (j.m + j.per_chunk - 1) / j.per_chunk);
}

/* out = gate / (1 + exp(-gate)) * up */
static void silu_mul_row(const float *gate, const float *up, float *out, long n) {
    for (long i = 0; i < n; i += LANES) {
        long left = n - i;
        v16 g = left >= LANES ? v_load(gate + i) : v_load_n(gate + i, left);
        v16 u = left >= LANES ? v_load(up + i) : v_load_n(up + i, left);
        v16 e = v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), g)));
        v16 y = v_mul(v_div(g, e), u);
        if (left >= LANES) v_store(out + i, y);
        else v_store_n(out + i, y, left);
    }
}
typedef struct {
    const float *x;
    float *out;
    long m, n, ldx, per_chunk;
} SiluJob;
static void silu_chunk(void *arg, long c) {
    SiluJob *j = arg;
    long end = (c + 1) * j->per_chunk < j->m ? (c + 1) * j->per_chunk : j->m;
    for (long r = c * j->per_chunk; r < end; r++)
        silu_mul_row(j->x + r * j->ldx, j->x + r * j->ldx + j->n, j->out + r * j->n, j->n);
}
#endif
