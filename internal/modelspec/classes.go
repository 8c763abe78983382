package modelspec

import "strings"

// Every key of a configuration is classed. What nobody has classed becomes provenance in an adapter, so that nothing is
// dropped. python/quire_kv has the same lists; a test compares them.
var (
	// ignored never changes a key or value of the cache: token ids, labels, sampling, training.
	ignored = words(`
	_name_or_path _commit_hash _attn_implementation _attn_implementation_internal _attn_implementation_autoset
	transformers_version torch_dtype dtype unsloth_version unsloth_fixed
	bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
	forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids
	use_cache output_attentions output_hidden_states output_scores output_router_logits return_dict
	return_dict_in_generate torchscript id2label label2id num_labels problem_type finetuning_task task_specific_params
	tokenizer_class tf_legacy_loss use_bfloat16 chunk_size_feed_forward gradient_checkpointing
	initializer_range initializer_factor init_std attention_dropout hidden_dropout hidden_dropout_prob
	attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop resid_dropout embedding_dropout
	classifier_dropout router_aux_loss_coef aux_loss_alpha seq_aux
	repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_beams num_beam_groups diversity_penalty
	do_sample num_return_sequences remove_invalid_values exponential_decay_length_penalty max_new_tokens
	generation_config`)

	// semantic is known to change them, or the shapes that they come in.
	semantic = words(`
	model_type architectures vocab_size hidden_size n_embd intermediate_size n_inner ffn_dim num_hidden_layers n_layer
	num_attention_heads n_head num_key_value_heads head_dim v_head_dim global_head_dim num_global_key_value_heads
	hidden_act hidden_activation activation_function mlp_activation rms_norm_eps layer_norm_eps layer_norm_epsilon
	norm_eps norm_epsilon layernorm_epsilon rms_norm norm_type normalization attention_bias mlp_bias qkv_bias use_bias
	bias attention_out_bias use_qk_norm qk_norm qk_layernorm use_qkv_bias clip_qkv attention_multiplier
	embedding_multiplier residual_multiplier logits_scaling query_pre_attn_scalar attn_logit_softcapping
	final_logit_softcapping scale_attn_weights scale_embedding embedding_scale tie_word_embeddings parallel_attn
	use_parallel_residual new_decoder_architecture multi_query multi_query_group_num alibi position_embedding_type
	learned_positions layer_types layers_block_type attn_type_list hybrid_override_pattern full_attention_interval
	attn_layer_indices attn_layer_period attn_layer_offset sliding_window use_sliding_window max_window_layers
	sliding_window_pattern attention_chunk_size no_rope_layers no_rope_layer_interval attn_temperature_tuning
	floor_scale attn_scale use_bidirectional_attention is_causal cross_attention_layers num_kv_shared_layers
	kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim rope_interleave index_head_dim index_n_heads
	index_topk num_nextn_predict_layers num_experts num_local_experts n_routed_experts n_shared_experts
	num_experts_per_tok num_experts_per_token moe_intermediate_size shared_expert_intermediate_size
	moe_layer_freq decoder_sparse_step first_k_dense_replace mlp_only_layers norm_topk_prob routed_scaling_factor
	scoring_func topk_method n_group topk_group moe_layers interleave_moe_layer_step mlp_layer_types
	linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
	conv_kernel state_size ssm_state_size mamba_d_state mamba_d_conv mamba_expand mamba_n_heads mamba_head_dim
	mamba_n_groups mamba_d_head mamba_num_heads num_heads n_groups time_step_rank expand mamba_chunk_size
	altup_num_inputs altup_active_idx altup_coef_scale laurel_rank hidden_size_per_layer_input vocab_size_per_layer_input
	activation_sparsity_pattern dual_chunk_attention_config quantization_config compression_config swiglu_limit
	is_encoder_decoder is_decoder add_cross_attention pretraining_tp image_token_id image_token_index video_token_id
	vision_start_token_id vision_end_token_id mm_tokens_per_image vision_feature_layer vision_feature_select_strategy
	projector_hidden_act multimodal_projector_bias vision_config audio_config attn_implementation pruned_heads
	_sliding_window_pattern rope_type rope_dim n_ctx max_sequence_length seq_length model_max_length max_seq_len quire.around`)

	// positional says how positions are encoded: the rope factors are made of it, and nothing else.
	positional = words(`
	rope_theta rope_scaling rope_parameters rope_local_base_freq partial_rotary_factor rotary_pct rotary_dim rotary_emb_base
	max_position_embeddings original_max_position_embeddings n_positions`)
)

func words(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[w] = true
	}
	return set
}
