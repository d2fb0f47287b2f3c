"""Channels: streams and views as their readers see them, with the same behaviour for every transport.

Readers that are up to date wait (`waiting`). `broadcast` (for views) and `tail` (for streams) apply each row filter in
use to new changes once, in one vectorised pass over all changes that arrived together. They then pass the result to the
waiting readers. A WebSocket sends a change immediately if nothing else is being sent: every reader gets the same
encoded bytes, without ASGI's queues. A WebSocket with a slow client does not take the change. Its reader is woken
instead and reads on its own, with a deadline for each send.
"""
