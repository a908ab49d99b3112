"""Embedded models: conversion of the trunk, training of draft layers."""
