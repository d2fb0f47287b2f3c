"""MQTT 3.1.1 and 5: what the bytes mean (`packets`, `decoder`), who answers what when (`link`, `session`), and which
event a message becomes (`topics`). The codec is our own, since QoS 2 needs answers that wait for the disk."""
