"""NATS JetStream: where reading begins (`consumer`), what was delivered and acknowledged (`inbox`), the reading itself
(`reader`), and which event a message becomes (`subjects`)."""
