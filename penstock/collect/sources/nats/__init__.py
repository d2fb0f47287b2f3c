"""NATS JetStream: start positions (`consumer`), deliveries (`inbox`), reading (`reader`) and events (`subjects`)."""
