/* y[m, n] = bias[n] + sum over k of x[m, k] * w[n, k], one sequential fma chain per element.
 *
 * Weights lie in panels of 16 output columns, lanes along the columns. bf16 panels hold, per
 * pair of k, 16 words (low half even k, high half odd k); float32 panels hold [k][16]. The chain
 * over k never depends on rows, blocking, threads or vector width: any batch gives equal bits. */
#ifndef KVTOP_LINEAR_H
#define KVTOP_LINEAR_H
#include "pool.h"
#include "vec.h"

typedef struct {
    const void *w;     /* packed panels */
    const float *bias; /* [n] or NULL */
    long n, k;
    long is_float32;
} Linear;

#ifndef PREFETCH_WORDS
#define PREFETCH_WORDS 512 /* 8 KiB ahead in all panels of a tile */
#endif
#define ROW_BLOCK 64 /* rows whose activations stay in the L2 cache while panels stream */

INLINE long panel_words(const Linear *l) { return (l->is_float32 ? l->k : (l->k + 1) / 2) * LANES; }

INLINE void tile(const float *x, long ldx, const uint32_t *w, long panel, long k, int f32,
                 v16 *acc, const int R, const int C) {
    v16 a[8 * 4];
#pragma GCC unroll 32
    for (int i = 0; i < R * C; i++) a[i] = v_zero();
    long pairs = k / 2;
    for (long j = 0; j < pairs; j++) {
        v16 we[4], wo[4];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            const uint32_t *p = w + c * panel + j * LANES * (f32 ? 2 : 1);
            __builtin_prefetch(p + 4 * PREFETCH_WORDS / C, 0, 3);
            if (f32) {
                we[c] = v_load((const float *)p);
                wo[c] = v_load((const float *)p + LANES);
            } else {
                u16x2 raw = w_load(p);
                we[c] = w_even(raw);
                wo[c] = w_odd(raw);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 s = v_set1(x[r * ldx + 2 * j]);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) a[r * C + c] = v_fma(s, we[c], a[r * C + c]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 s = v_set1(x[r * ldx + 2 * j + 1]);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) a[r * C + c] = v_fma(s, wo[c], a[r * C + c]);
        }
    }
    if (k & 1) {
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            const uint32_t *p = w + c * panel + pairs * LANES * (f32 ? 2 : 1);
            v16 we = f32 ? v_load((const float *)p) : w_even(w_load(p));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                a[r * C + c] = v_fma(v_set1(x[r * ldx + k - 1]), we, a[r * C + c]);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < R * C; i++) acc[i] = a[i];
}
INLINE void tile_out(const Linear *l, const float *x, long ldx, float *y, long ldy, long p0,
                     const int R, const int C) {
    long panel = panel_words(l);
    const uint32_t *w = (const uint32_t *)l->w + p0 * panel;
    v16 acc[8 * 4];
    if (l->is_float32) tile(x, ldx, w, panel, l->k, 1, acc, R, C);
    else tile(x, ldx, w, panel, l->k, 0, acc, R, C);
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        long n0 = (p0 + c) * LANES, left = l->n - n0;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 v = acc[r * C + c];
            if (left >= LANES) {
                if (l->bias) v = v_add(v, v_load(l->bias + n0));
                v_store(y + r * ldy + n0, v);
            } else {
                if (l->bias) v = v_add(v, v_load_n(l->bias + n0, left));
                v_store_n(y + r * ldy + n0, v, left);
            }
        }
    }
}
/* Widest column block whose accumulators stay in registers. */
#if TILE_ROWS == 8
#define COLS(R) ((R) <= 4 ? 4 : 2)
#else
#define COLS(R) ((R) == 1 ? 4 : 1)
#endif
#define PANELS_CASE(R)                                                                          \
    case R:                                                                                     \
        for (; p + COLS(R) <= p1; p += COLS(R)) tile_out(l, x, ldx, y, ldy, p, R, COLS(R));     \
        for (; p < p1; p++) tile_out(l, x, ldx, y, ldy, p, R, 1);                               \
        break;

static void rows_by_panels(const Linear *l, const float *x, long ldx, float *y, long ldy,
                           long rows, long p0, long p1) {
    long p = p0;
    switch (rows) {
        PANELS_CASE(1) PANELS_CASE(2) PANELS_CASE(3) PANELS_CASE(4)
#if TILE_ROWS >= 6
        PANELS_CASE(5) PANELS_CASE(6)
#endif
#if TILE_ROWS >= 8
        PANELS_CASE(7) PANELS_CASE(8)
#endif
    }
}
/* Columns of panels [p0, p1) for all rows, in row tiles of nearly equal height. */
static void linear_panels(const Linear *l, const float *x, long ldx, float *y, long ldy, long m,
                          long p0, long p1) {
    long tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    long step = m <= TILE_ROWS ? p1 - p0 : 2;
    for (long p = p0; p < p1; p += step) {
        long pe = p + step < p1 ? p + step : p1;
        for (long t = 0; t < tiles; t++) {
            long r0 = m * t / tiles, r1 = m * (t + 1) / tiles;
            rows_by_panels(l, x + r0 * ldx, ldx, y + r0 * ldy, ldy, r1 - r0, p, pe);
        }
    }
}
typedef struct {
    const Linear *l;
    const float *x;
    float *y;
    long ldx, ldy, m, panels, chunk_panels, row_blocks;
} LinearJob;

static void linear_chunk(void *arg, long chunk) {
    LinearJob *j = arg;
    long b = chunk % j->row_blocks, p0 = chunk / j->row_blocks * j->chunk_panels;
    long p1 = p0 + j->chunk_panels < j->panels ? p0 + j->chunk_panels : j->panels;
    long r0 = j->m * b / j->row_blocks, r1 = j->m * (b + 1) / j->row_blocks;
    linear_panels(j->l, j->x + r0 * j->ldx, j->ldx, j->y + r0 * j->ldy, j->ldy, r1 - r0, p0, p1);
}
/* Panels per chunk: at least four chunks per thread when there are so many panels. */
static long chunk_panels(long panels) {
    long c = panels / (4L * pool.threads);
    return c >= 16 ? 16 : c >= 8 ? 8 : c >= 4 ? 4 : c >= 2 ? 2 : 1;
}
static void linear_run(const Linear *l, const float *x, long ldx, float *y, long ldy, long m) {
    LinearJob j = {l, x, y, ldx, ldy, m, (l->n + LANES - 1) / LANES, 0, 0};
    j.chunk_panels = chunk_panels(j.panels);
    j.row_blocks = (m + ROW_BLOCK - 1) / ROW_BLOCK;
    long chunks = (j.panels + j.chunk_panels - 1) / j.chunk_panels * j.row_blocks;
    pool_run(linear_chunk, &j, chunks);
}
#endif
