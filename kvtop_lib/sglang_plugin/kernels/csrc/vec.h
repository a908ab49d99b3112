/* Sixteen float32 lanes, the same arithmetic on every CPU.
 *
 * Every operation is one IEEE operation per lane (fma included), so AVX-512, AVX2 and the
 * portable variant give the same bits. Build with -ffp-contract=off and never -ffast-math. */
#ifndef KVTOP_VEC_H
#define KVTOP_VEC_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define KVTOP_ISA "avx512"
#define TILE_ROWS 8     /* rows per register tile of the linear kernel */
typedef __m512 v16;
typedef __m512i u16x2;  /* per lane: bf16 of even k in the low half, of odd k in the high half */
INLINE v16 v_zero(void) { return _mm512_setzero_ps(); }
INLINE v16 v_set1(float a) { return _mm512_set1_ps(a); }
INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
INLINE v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 v_round(v16 a) { return _mm512_roundscale_ps(a, 8); }
INLINE v16 v_pow2(v16 n) { /* 2^n for integral n in [-126, 127] */
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}
INLINE v16 v_where_ge(v16 x, v16 lo, v16 y) { /* y where x >= lo, else 0 */
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lo, _CMP_GE_OQ), y);
}
INLINE u16x2 w_load(const uint32_t *p) { return _mm512_loadu_si512((const void *)p); }
INLINE v16 w_even(u16x2 w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
INLINE v16 w_odd(u16x2 w) {
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define KVTOP_ISA "avx2"
#define TILE_ROWS 4
typedef struct { __m256 a, b; } v16;
typedef struct { __m256i a, b; } u16x2;
#define V2(ea, eb) ((v16){(ea), (eb)})
INLINE v16 v_zero(void) { return V2(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE v16 v_set1(float x) { __m256 s = _mm256_set1_ps(x); return V2(s, s); }
INLINE v16 v_load(const float *p) { return V2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
INLINE v16 v_add(v16 x, v16 y) { return V2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE v16 v_sub(v16 x, v16 y) { return V2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE v16 v_mul(v16 x, v16 y) { return V2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE v16 v_div(v16 x, v16 y) { return V2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE v16 v_max(v16 x, v16 y) { return V2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE v16 v_min(v16 x, v16 y) { return V2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
INLINE v16 v_fma(v16 x, v16 y, v16 z) {
    return V2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
INLINE v16 v_round(v16 x) { return V2(_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)); }
INLINE __m256 pow2_8(__m256 n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
INLINE v16 v_pow2(v16 n) { return V2(pow2_8(n.a), pow2_8(n.b)); }
INLINE v16 v_where_ge(v16 x, v16 lo, v16 y) {
    return V2(_mm256_and_ps(_mm256_cmp_ps(x.a, lo.a, _CMP_GE_OQ), y.a),
              _mm256_and_ps(_mm256_cmp_ps(x.b, lo.b, _CMP_GE_OQ), y.b));
}
INLINE u16x2 w_load(const uint32_t *p) {
    return (u16x2){_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 8))};
}
INLINE v16 w_even(u16x2 w) {
    return V2(_mm256_castsi256_ps(_mm256_slli_epi32(w.a, 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(w.b, 16)));
}
INLINE v16 w_odd(u16x2 w) {
    __m256i m = _mm256_set1_epi32((int)0xffff0000);
    return V2(_mm256_castsi256_ps(_mm256_and_si256(w.a, m)),
              _mm256_castsi256_ps(_mm256_and_si256(w.b, m)));
}

#else /* portable: loops that a compiler for a CPU with fma (aarch64) vectorises */
#define KVTOP_ISA "portable"
#define TILE_ROWS 4
typedef struct { float f[LANES]; } v16;
typedef struct { uint32_t u[LANES]; } u16x2;
#define EACH(expr) v16 r; for (int i = 0; i < LANES; i++) r.f[i] = (expr); return r
INLINE v16 v_set1(float a) { EACH(a); }
INLINE v16 v_zero(void) { return v_set1(0.0f); }
INLINE v16 v_load(const float *p) { EACH(p[i]); }
INLINE void v_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
INLINE v16 v_add(v16 a, v16 b) { EACH(a.f[i] + b.f[i]); }
INLINE v16 v_sub(v16 a, v16 b) { EACH(a.f[i] - b.f[i]); }
INLINE v16 v_mul(v16 a, v16 b) { EACH(a.f[i] * b.f[i]); }
INLINE v16 v_div(v16 a, v16 b) { EACH(a.f[i] / b.f[i]); }
INLINE v16 v_max(v16 a, v16 b) { EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
INLINE v16 v_min(v16 a, v16 b) { EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { EACH(__builtin_fmaf(a.f[i], b.f[i], c.f[i])); }
INLINE v16 v_round(v16 a) { EACH(nearbyintf(a.f[i])); }
INLINE float as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
INLINE v16 v_pow2(v16 n) { EACH(as_float((uint32_t)((int)n.f[i] + 127) << 23)); }
INLINE v16 v_where_ge(v16 x, v16 lo, v16 y) { EACH(x.f[i] >= lo.f[i] ? y.f[i] : 0.0f); }
INLINE u16x2 w_load(const uint32_t *p) { u16x2 r; memcpy(r.u, p, sizeof r.u); return r; }
INLINE v16 w_even(u16x2 w) { EACH(as_float(w.u[i] << 16)); }
INLINE v16 w_odd(u16x2 w) { EACH(as_float(w.u[i] & 0xffff0000u)); }
#endif

/* Sum of the lanes in one fixed tree: l + (l + 8), then 4, 2, 1. */
INLINE float v_sum(v16 a) {
    float t[LANES];
    v_store(t, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] + t[i + half];
    return t[0];
}
INLINE v16 v_load_n(const float *p, long n) { /* first n lanes, zeros behind */
    float t[LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof(float));
    return v_load(t);
}
INLINE void v_store_n(float *p, v16 a, long n) {
    float t[LANES];
    v_store(t, a);
    memcpy(p, t, (size_t)n * sizeof(float));
}
/* exp(x), relative error below 2e-7 (Cephes expf polynomial); 0 below -87.3, clamped at 88. */
INLINE v16 v_exp(v16 x) {
    v16 lo = v_set1(-87.3f);
    v16 c = v_min(v_max(x, lo), v_set1(88.0f));
    v16 n = v_round(v_mul(c, v_set1(1.44269504088896341f)));
    v16 r = v_fma(n, v_set1(-0.693359375f), c);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    v16 p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    return v_where_ge(x, lo, v_mul(p, v_pow2(n)));
}
#endif
