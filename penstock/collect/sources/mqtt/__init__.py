"""MQTT 3.1.1 and 5: encoding (`packets`, `decoder`), protocol (`link`, `session`), and events from messages (`topics`).

Penstock has its own codec, because QoS 2 needs replies that wait for the disk.
"""
