/* Attention over a paged KV pool: decode, extend and verify are one routine.
 *
 * A query attends to the keys of its request in order of their index in req_to_token. Its result
 * depends on nothing but that sequence: each score is one fma chain over the head dimension, the
 * maximum is exact in any order, and the sum of weights and the weighted sum of values are one
 * chain over the keys, to which a masked key adds exactly zero. So a token gets the same bits in
 * a decode step, in a verified chain or tree, in a prefill, and for any number of threads. */
#ifndef KVTOP_ATTENTION_H
#define KVTOP_ATTENTION_H
#include "linear.h"
#include <stdlib.h>

typedef struct {
    const float *q;              /* [tokens][q_heads][head_dim], rows ldq apart */
    float *out;                  /* [tokens][q_heads][v_dim], rows ldo apart */
    const float *k_pool, *v_pool; /* [slots][kv_heads][dim], slots k_slot / v_slot floats apart */
    const int32_t *req_to_token; /* [requests][req_stride]: slot of each position */
    const int64_t *req_pool;     /* [batch] row of req_to_token */
    const int64_t *seq_lens;     /* [batch] keys, the new tokens included */
    const int64_t *extend_lens;  /* [batch] new tokens at the end; NULL: one each */
    const uint8_t *mask;         /* NULL, or per request [extend][seq_len], concatenated */
    long ldq, ldo, k_slot, v_slot, req_stride;
    long batch, q_heads, kv_heads, head_dim, v_dim, causal, window; /* window <= 0: none */
    float scale, logit_cap;      /* logit_cap <= 0: none */
} Attention;

typedef struct { /* query tokens [t0, t1) of request i, heads of KV head g */
    int32_t i, g;
    int64_t t0, t1, row0, mask0;
} Unit;
typedef struct {
    const Attention *a;
    Unit *units;
} AttentionJob;

#define KEY_BLOCK 64
#define TILE_QUERY_ROWS 24 /* (query, head) rows that share one pass over the keys */
#define MAX_GROUP 64       /* query heads per KV head */

static _Thread_local struct { float *p; size_t n; } scratch;
static float *scratch_floats(size_t n) {
    if (scratch.n < n) {
        free(scratch.p);
        scratch.n = n + n / 2;
        scratch.p = aligned_alloc(64, (scratch.n * sizeof(float) + 63) / 64 * 64);
    }
    return scratch.p;
}
/* Slots are anywhere in the pool, which no hardware prefetcher follows. */
#define PREFETCH_KEYS 32
INLINE void prefetch_row(const float *row, long dim) {
    for (long d = 0; d < dim; d += LANES) __builtin_prefetch(row + d, 0, 3);
}
#if defined(__AVX2__)
INLINE void transpose8(const float *const *rows, long d, float *out) { /* out[dim][16 lanes] */
#define IN(i) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + d)),           \
                                   _mm_loadu_ps(rows[(i) + 4] + d), 1)
    for (int h = 0; h < 2; h++, d += 4, out += 4 * LANES) {
        __m256 r0 = IN(0), r1 = IN(1), r2 = IN(2), r3 = IN(3);
        __m256 a = _mm256_unpacklo_ps(r0, r1), b = _mm256_unpackhi_ps(r0, r1);
        __m256 c = _mm256_unpacklo_ps(r2, r3), e = _mm256_unpackhi_ps(r2, r3);
        _mm256_storeu_ps(out, _mm256_shuffle_ps(a, c, 0x44));
        _mm256_storeu_ps(out + LANES, _mm256_shuffle_ps(a, c, 0xee));
        _mm256_storeu_ps(out + 2 * LANES, _mm256_shuffle_ps(b, e, 0x44));
        _mm256_storeu_ps(out + 3 * LANES, _mm256_shuffle_ps(b, e, 0xee));
    }
#undef IN
}
#endif
/* Keys [k0, k1) of a request as float32 panels [dim][16 keys]; lanes behind k1 repeat the last. */
static void pack_keys(const float *pool, long slot, const int32_t *slots, long k0, long k1,
                      long end, long dim, float *panels) {
    for (long k = k0; k < k1; k += LANES, panels += dim * LANES) {
        for (long i = k + PREFETCH_KEYS; i < k + PREFETCH_KEYS + LANES && i < end; i++)
            prefetch_row(pool + (long)slots[i] * slot, dim);
        const float *rows[LANES];
        for (long i = 0; i < LANES; i++)
            rows[i] = pool + (long)slots[k + i < k1 ? k + i : k1 - 1] * slot;
        long d = 0;
#if defined(__AVX2__)
        for (; d + 8 <= dim; d += 8) {
            transpose8(rows, d, panels + d * LANES);
            transpose8(rows + 8, d, panels + d * LANES + 8);
        }
#endif
        for (; d < dim; d++)
            for (long i = 0; i < LANES; i++) panels[d * LANES + i] = rows[i][d];
    }
}
/* Weights of one row from its scores, in place; keys outside [lo, hi) or masked get zero. */
static void softmax_row(const Attention *a, float *s, long lo, long hi, long padded,
                        const uint8_t *mask) {
    v16 top = v_set1(-INFINITY);
    if (a->logit_cap > 0)
        for (long k = lo; k < hi; k++) s[k] = a->logit_cap * tanhf(s[k] * a->scale / a->logit_cap);
    else
        for (long k = 0; k < padded; k += LANES)
            v_store(s + k, v_mul(v_load(s + k), v_set1(a->scale)));
    for (long k = 0; k < lo; k++) s[k] = -INFINITY;
    for (long k = hi; k < padded; k++) s[k] = -INFINITY;
    if (mask)
        for (long k = lo; k < hi; k++)
            if (!mask[k]) s[k] = -INFINITY;
    for (long k = 0; k < padded; k += LANES) top = v_max(top, v_load(s + k));
    float t[LANES], m = -INFINITY;
    v_store(t, top);
    for (int i = 0; i < LANES; i++) m = t[i] > m ? t[i] : m;
    if (m == -INFINITY) m = 0.0f;
    for (long k = 0; k < padded; k += LANES) v_store(s + k, v_exp(v_sub(v_load(s + k), v_set1(m))));
}
/* acc[r][c] = sum over keys of p[r][key] * v[key][16 c ..], sum[r] = sum over keys of p[r][key]. */
INLINE void values_tile(const float *p, long ldp, const float *pool, long slot,
                        const int32_t *slots, long k0, long k1, long c0, long dim,
                        float *const *out, float *inv, const int R, const int C,
                        const int tail) {
    v16 acc[8 * 4];
    float sum[8];
#pragma GCC unroll 32
    for (int i = 0; i < R * C; i++) acc[i] = v_zero();
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sum[r] = 0.0f;
    for (long k = k0; k < k1; k++) {
        const float *v = pool + (long)slots[k] * slot + c0;
        if (c0 == 0 && k + PREFETCH_KEYS < k1)
            prefetch_row(pool + (long)slots[k + PREFETCH_KEYS] * slot, dim);
        v16 w[4];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
            w[c] = tail ? v_load_n(v + c * LANES, dim - c0) : v_load(v + c * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            float pr = p[r * ldp + k];
            if (c0 == 0) sum[r] += pr;
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) acc[r * C + c] = v_fma(v_set1(pr), w[c], acc[r * C + c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (c0 == 0) inv[r] = sum[r] > 0.0f ? 1.0f / sum[r] : 0.0f;
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            v16 y = v_mul(acc[r * C + c], v_set1(inv[r]));
            if (tail) v_store_n(out[r] + c0, y, dim - c0);
            else v_store(out[r] + c0 + c * LANES, y);
        }
    }
}
#define VALUES_CASE(R)                                                                          \
    case R:                                                                                     \
        for (; c0 + COLS(R) * LANES <= dim; c0 += COLS(R) * LANES)                              \
            values_tile(p, ldp, pool, slot, slots, k0, k1, c0, dim, out, inv, R, COLS(R), 0);   \
        for (; c0 + LANES <= dim; c0 += LANES)                                                  \
            values_tile(p, ldp, pool, slot, slots, k0, k1, c0, dim, out, inv, R, 1, 0);         \
        if (c0 < dim)                                                                           \
            values_tile(p, ldp, pool, slot, slots, k0, k1, c0, dim, out, inv, R, 1, 1);         \
        break;
static void values_rows(const float *p, long ldp, const float *pool, long slot,
                        const int32_t *slots, long k0, long k1, long dim, float *const *out,
                        long rows) {
    float inv[8] = {0};
    long c0 = 0;
    switch (rows) {
        VALUES_CASE(1) VALUES_CASE(2) VALUES_CASE(3) VALUES_CASE(4)
#if TILE_ROWS >= 6
        VALUES_CASE(5) VALUES_CASE(6)
#endif
#if TILE_ROWS >= 8
        VALUES_CASE(7) VALUES_CASE(8)
#endif
    }
}
static void attention_unit(void *arg, long index) {
    AttentionJob *job = arg;
    const Attention *a = job->a;
    Unit u = job->units[index];
    long group = a->q_heads / a->kv_heads, rows = (u.t1 - u.t0) * group;
    long len = a->seq_lens[u.i], prefix = len - (a->extend_lens ? a->extend_lens[u.i] : 1);
    int full = a->mask || !a->causal;
    long end = full ? len : prefix + u.t1; /* keys behind the last query's own */
    long start = 0;
    if (a->window > 0 && prefix + u.t0 + 1 > a->window) start = prefix + u.t0 + 1 - a->window;
    start = start / LANES * LANES;
    long padded = (end - start + LANES - 1) / LANES * LANES;
    const int32_t *slots = a->req_to_token + a->req_pool[u.i] * a->req_stride;
    float *q = scratch_floats((size_t)(rows * (padded + a->head_dim) + KEY_BLOCK * a->head_dim));
    float *panels = q + rows * a->head_dim, *s = panels + KEY_BLOCK * a->head_dim;
    float *out[TILE_QUERY_ROWS > MAX_GROUP ? TILE_QUERY_ROWS : MAX_GROUP];
    for (long t = u.t0, r = 0; t < u.t1; t++)
        for (long h = 0; h < group; h++, r++) {
            long head = u.g * group + h;
            memcpy(q + r * a->head_dim, a->q + (u.row0 + t) * a->ldq + head * a->head_dim,
                   (size_t)a->head_dim * sizeof(float));
            out[r] = a->out + (u.row0 + t) * a->ldo + head * a->v_dim;
        }
    for (long k = start; k < end; k += KEY_BLOCK) {
        long ke = k + KEY_BLOCK < end ? k + KEY_BLOCK : end;
        pack_keys(a->k_pool + u.g * a->head_dim, a->k_slot, slots, k, ke, end, a->head_dim,
                  panels);
        long tiles = (ke - k + LANES - 1) / LANES;
        Linear l = {panels, NULL, tiles * LANES, a->head_dim, 1};
        linear_panels(&l, q, a->head_dim, s + (k - start), padded, rows, 0, tiles);
    }
    for (long t = u.t0, r = 0; t < u.t1; t++) {
        long hi = full ? len : prefix + t + 1, lo = 0;
        if (a->window > 0 && prefix + t + 1 > a->window) lo = prefix + t + 1 - a->window;
        const uint8_t *mask = a->mask ? a->mask + u.mask0 + t * len + start : NULL;
        for (long h = 0; h < group; h++, r++)
            softmax_row(a, s + r * padded, lo > start ? lo - start : 0, hi - start, padded, mask);
    }
    for (long r = 0; r < rows; r += TILE_ROWS) {
        long n = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
        values_rows(s + r * padded - start, padded, a->v_pool + u.g * a->v_dim, a->v_slot, slots,
                    start, end, a->v_dim, out + r, n);
    }
}
static void attention_run(const Attention *a) {
    long group = a->q_heads / a->kv_heads, per = TILE_QUERY_ROWS / group, count = 0;
    if (per < 1) per = 1;
    for (long i = 0; i < a->batch; i++)
        count += ((a->extend_lens ? a->extend_lens[i] : 1) + per - 1) / per * a->kv_heads;
    Unit stack[256], *units = count <= 256 ? stack : malloc((size_t)count * sizeof(Unit)), *u = units;
    int64_t row = 0, mask = 0;
    for (int32_t i = 0; i < a->batch; i++) {
        int64_t n = a->extend_lens ? a->extend_lens[i] : 1;
        for (int64_t t = (n + per - 1) / per * per - per; t >= 0; t -= per) /* longest first */
            for (int32_t g = 0; g < a->kv_heads; g++)
                *u++ = (Unit){i, g, t, t + per < n ? t + per : n, row, mask};
        row += n;
        mask += n * a->seq_lens[i];
    }
    AttentionJob job = {a, units};
    pool_run(attention_unit, &job, count);
    if (units != stack) free(units);
}
#endif
