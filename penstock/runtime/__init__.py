"""Runtime: puts the tiers together as processes. The only place that knows more than one tier."""
