"""Durable agent runs on a Kafka log."""
