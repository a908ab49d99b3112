/* Longest earlier occurrence of a token sequence's suffix, kept up to date as tokens arrive.
 *
 * Hash chains over a sliding window, as in Lempel-Ziv compressors: head[h] is one more than the
 * latest end of an m-gram with hash h (0: none, so that fresh pages need no filling), prev[] links
 * each end to the one before it. Positions are absolute; a position lives in slot (position & mask)
 * until the window has moved past it. One step costs a bounded number of comparisons, whatever the
 * context's length, as long as the text stays within what was expected of it.
 */
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))
#define FIRST_SLOTS 1024

typedef struct {
    int32_t *token, *prev, *head;
    int64_t n, slots, window; /* tokens seen, slots now, slots at most (powers of two) */
    int64_t min_match, max_match, candidates, steps, relinked;
} Index;

static uint32_t hash_at(const Index *x, int64_t end) {
    uint64_t h = 0;
    for (int64_t i = end - x->min_match + 1; i <= end; i++)
        h = (h ^ (uint32_t)x->token[i & (x->slots - 1)]) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    return (uint32_t)(h & (uint64_t)(x->slots - 1));
}

static void link_end(Index *x, int64_t end) {
    if (end < x->min_match - 1) return;
    uint32_t h = hash_at(x, end);
    x->prev[end & (x->slots - 1)] = x->head[h] - 1;
    x->head[h] = (int32_t)end + 1;
}

static int grow(Index *x, int64_t slots) {
    size_t bytes = (size_t)slots * sizeof(int32_t);
    int32_t *token = realloc(x->token, bytes);
    if (token) x->token = token;
    int32_t *prev = realloc(x->prev, bytes);
    if (prev) x->prev = prev;
    free(x->head);
    x->head = calloc((size_t)slots, sizeof(int32_t));
    if (!token || !prev || !x->head) return 0;
    x->slots = slots;
    for (int64_t end = 0; end < x->n; end++) link_end(x, end);
    x->relinked += x->n;
    return 1;
}

API void kvtop_suffix_free(Index *x) {
    if (!x) return;
    free(x->token), free(x->prev), free(x->head), free(x);
}

/* Growing links all that was read anew, a pause that a right `expected` number of tokens spares. */
API Index *kvtop_suffix_new(int64_t window, int64_t min_match, int64_t max_match,
                            int64_t candidates, int64_t expected) {
    Index *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->window = window, x->min_match = min_match, x->max_match = max_match;
    x->candidates = candidates, x->steps = 8 * candidates; /* colliding hashes walk further */
    int64_t slots = window < FIRST_SLOTS ? window : FIRST_SLOTS;
    while (slots < expected && slots < window) slots *= 2;
    if (grow(x, slots)) return x;
    kvtop_suffix_free(x);
    return NULL;
}

/* Append tokens; returns 0 when memory ran out. */
API int kvtop_suffix_extend(Index *x, const int64_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (x->n == x->slots && x->slots < x->window && !grow(x, 2 * x->slots)) return 0;
        x->token[x->n & (x->slots - 1)] = (int32_t)tokens[i];
        link_end(x, x->n++);
    }
    return 1;
}

/* Tokens that growing has linked anew. */
API int64_t kvtop_suffix_relinked(const Index *x) { return x->relinked; }

/* Length of the longest earlier occurrence (0: none of min_match); its continuation in out.
 * A continuation that reaches the end of the text goes on in itself, as a repetition would. */
API int64_t kvtop_suffix_propose(const Index *x, int64_t depth, int64_t *out) {
    int64_t mask = x->slots - 1, last = x->n - 1, oldest = x->n - x->slots;
    int64_t best = 0, at = -1, left = x->candidates;
    if (x->n < x->min_match + 1) return 0;
    int64_t p = x->prev[last & mask];
    for (int64_t step = 0; step < x->steps && left > 0 && p >= 0 && p >= oldest; step++) {
        int64_t n = 0;
        while (n < x->max_match && p - n >= 0 && p - n >= oldest &&
               x->token[(p - n) & mask] == x->token[(last - n) & mask])
            n++;
        if (n >= x->min_match) {
            left--;
            if (n > best) best = n, at = p;
            if (best == x->max_match) break;
        }
        int64_t next = x->prev[p & mask];
        if (next >= p) break;
        p = next;
    }
    if (!best) return 0;
    for (int64_t i = 0; i < depth; i++) {
        int64_t from = at + 1 + i;
        out[i] = from <= last ? x->token[from & mask] : out[from - x->n];
    }
    return best;
}
