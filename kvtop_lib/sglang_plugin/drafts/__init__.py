"""Who drafts and how wide: n-gram look-up beside MTP, and the width of every iteration."""
