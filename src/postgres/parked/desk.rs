//! What a person sees of the parked table and writes into it: lists, one event whole, requests.
