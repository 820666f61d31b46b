"""SmolLM2-135M-Instruct on a laptop: conversion, data of reasoning-gym, every stage (README.md)."""
