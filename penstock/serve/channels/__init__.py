"""Streams and views as their readers see them: the one behaviour behind every transport."""
