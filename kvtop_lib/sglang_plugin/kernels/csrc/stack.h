/* A whole Llama stack in one call: norm, qkv, RoPE, KV store, attention, o, norm, gate_up,
 * SiLU-and-multiply, down, for every layer, then the final norm. */
#ifndef KVTOP_STACK_H
#define KVTOP_STACK_H
#include "attention.h"
#include "rows.h"

typedef struct {
    const float *in_norm; /* NULL: the layer has none (EAGLE draft) */
    const float *post_norm;
    float *k_pool, *v_pool;
    Linear qkv, o, gate_up, down;
} Layer;
typedef struct {
    const Layer *layer;
    const float *final_norm; /* NULL: return the residual sum */
    const float *cos_sin;    /* [positions][rotary] */
    long layers, hidden, ffn, rotary;
    float eps;
} Stack;
typedef struct {
    const Linear *l;
    const float *x;
    float *gate_up, *out;
    long m, ffn, panels, chunk_panels, row_blocks;
} GateUpJob;

/* The same columns of gate and up, then their product while they are in the cache. */
static void gate_up_chunk(void *arg, long chunk) {
    GateUpJob *j = arg;
    long b = chunk % j->row_blocks, p0 = chunk / j->row_blocks * j->chunk_panels;
    long p1 = p0 + j->chunk_panels < j->panels ? p0 + j->chunk_panels : j->panels;
    long r0 = j->m * b / j->row_blocks, r1 = j->m * (b + 1) / j->row_blocks, ld = 2 * j->ffn;
    const float *x = j->x + r0 * j->l->k;
    float *y = j->gate_up + r0 * ld;
    linear_panels(j->l, x, j->l->k, y, ld, r1 - r0, p0, p1);
    linear_panels(j->l, x, j->l->k, y, ld, r1 - r0, p0 + j->panels, p1 + j->panels);
    for (long r = r0; r < r1; r++) {
        float *gate = j->gate_up + r * ld + p0 * LANES;
        silu_mul_row(gate, gate + j->ffn, j->out + r * j->ffn + p0 * LANES, (p1 - p0) * LANES);
    }
}
static void gate_up_run(const Linear *l, const float *x, float *gate_up, float *out, long m) {
    long ffn = l->n / 2;
    if (ffn % LANES) { /* gate and up share a panel: two steps */
        linear_run(l, x, l->k, gate_up, l->n, m);
        SiluJob s = {gate_up, out, m, ffn, l->n, rows_per_chunk(2 * ffn)};
        pool_run(silu_chunk, &s, (m + s.per_chunk - 1) / s.per_chunk);
        return;
    }
    GateUpJob j = {l, x, gate_up, out, m, ffn, ffn / LANES, 0, (m + ROW_BLOCK - 1) / ROW_BLOCK};
    j.chunk_panels = chunk_panels(j.panels);
    pool_run(gate_up_chunk, &j, (j.panels + j.chunk_panels - 1) / j.chunk_panels * j.row_blocks);
}
static long stack_workspace(const Stack *s, const Attention *a) { /* floats per row */
    long q = a->q_heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    return q + 2 * kv + q + 2 * s->hidden + 3 * s->ffn;
}
/* x [m][hidden]: the input, overwritten by the residual sum; out [m][hidden]; a: template whose
 * q, out and pools are filled in here. */
static void stack_run(const Stack *s, const Attention *batch, const int64_t *positions,
                      const int64_t *slots, float *x, float *out, float *work, long m) {
    Attention a = *batch;
    long q = a.q_heads * a.head_dim, kv = a.kv_heads * a.head_dim, ldqkv = q + 2 * kv;
    float *qkv = work, *attn = qkv + m * ldqkv, *normed = attn + m * q;
    float *tmp = normed + m * s->hidden, *gate_up = tmp + m * s->hidden;
    float *act = gate_up + m * 2 * s->ffn;
    for (long i = 0; i < s->layers; i++) {
        const Layer *l = &s->layer[i];
        norm_run((NormJob){x, i ? tmp : NULL, l->in_norm, normed, m, s->hidden, s->hidden,
                           s->hidden, s->hidden, 0, s->eps});
        linear_run(&l->qkv, normed, s->hidden, qkv, ldqkv, m);
        rope_run((RopeJob){positions, slots, s->cos_sin, qkv, qkv + q, qkv + q + kv, l->k_pool,
                           l->v_pool, m, a.q_heads, a.kv_heads, a.head_dim, s->rotary, ldqkv,
                           ldqkv, ldqkv, a.k_slot, 0});
        a.q = qkv;
        a.ldq = ldqkv;
        a.out = attn;
        a.ldo = q;
        a.k_pool = l->k_pool;
        a.v_pool = l->v_pool;
        attention_run(&a);
        linear_run(&l->o, attn, q, tmp, s->hidden, m);
        norm_run((NormJob){x, tmp, l->post_norm, normed, m, s->hidden, s->hidden, s->hidden,
                           s->hidden, 0, s->eps});
        gate_up_run(&l->gate_up, normed, gate_up, act, m);
        linear_run(&l->down, act, s->ffn, tmp, s->hidden, m);
    }
    norm_run((NormJob){x, s->layers ? tmp : NULL, s->final_norm, out, m, s->hidden, s->hidden,
                       s->hidden, s->hidden, 0, s->eps});
}
#endif
