// Writes tiny seeded GGUF models of every architecture, complete with a tokenizer for ASCII text,
// that libllama loads as well: what tests compare against, and what they break on purpose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace winnow::testing {

struct TinyGguf {
  std::string architecture = "llama";  // llama, qwen2, qwen3, gemma3; others are written like llama
  uint64_t seed = 1;
  std::string weight_type = "f32";  // of the matrices: f32, f16 or a quantisation such as "q8_0"
  std::string value_weight_type;    // of attn_v and ffn_down, where it is another
  int n_layers = 3;
  int hidden = 64;
  int query_heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int feed_forward = 96;
  int context_length = 512;
  bool fused_qkv = false;            // one attn_qkv matrix in place of attn_q, attn_k and attn_v
  bool tied_output = false;          // no output.weight
  float rope_linear_factor = 0;      // 0: no scaling
  std::string rope_scaling_type;     // written as it is, unless empty
  bool rope_llama3_factors = false;  // writes rope_freqs.weight
  bool output_biases = false;        // biases of output, gate, up and down projections (llama only)
  int window = 8;                    // gemma3's local layers
  float logit_softcap = 0;           // gemma3
  std::string chat_template;         // Jinja, unless empty

  // For broken files:
  std::vector<std::string> omit;  // names of tensors or metadata keys to leave out
  std::string misshape;           // name of a tensor that gets one row or element too many
  std::string extra_tensor;       // name of a tensor that no model has
  int expert_count = 0;           // metadata only
};

// Number of tokens of the vocabulary, which is MakePlainVocabulary's.
int TinyVocabulary();

// Throws std::runtime_error if the file cannot be written.
void WriteTinyGguf(const std::string& path, const TinyGguf& options);

}  // namespace winnow::testing
