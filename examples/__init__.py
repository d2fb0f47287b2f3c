"""Runnable example apps, and the event generators that feed them."""
