"""The serve tier: streams and views as their readers see them, behind every transport."""
