"""The training step in PyTorch on the CPU: `torch_worker.py FOLDER eager|compile`. See protocol.py.

The strongest ordinary configuration: fused attention, fused AdamW, clipping over all tensors at once; `compile` compiles
forward, loss and backward as full graphs with Inductor.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import protocol


class Attention(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = case.heads, case.kv_heads, case.head_dim
        self.q_proj = nn.Linear(case.dim, case.heads * case.head_dim, bias=False)
        self.k_proj = nn.Linear(case.dim, case.kv_heads * case.head_dim, bias=False)
        self.v_proj = nn.Linear(case.dim, case.kv_heads * case.head_dim, bias=False)
        self.o_proj = nn.Linear(case.heads * case.head_dim, case.dim, bias=False)

    def forward(self, x_BSD, cos, sin):
        B, S, _ = x_BSD.shape
        q = rope(self.q_proj(x_BSD).view(B, S, self.heads, self.head_dim).transpose(1, 2), cos, sin)
        k = rope(self.k_proj(x_BSD).view(B, S, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x_BSD).view(B, S, self.kv_heads, self.head_dim).transpose(1, 2)
        # The CPU's flash kernel wants as many key heads as query heads; with enable_gqa PyTorch takes the unfused path.
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, S, -1))


class FeedForward(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.gate_proj = nn.Linear(case.dim, case.ffn_dim, bias=False)
        self.up_proj = nn.Linear(case.dim, case.ffn_dim, bias=False)
        self.down_proj = nn.Linear(case.ffn_dim, case.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(case.dim, eps=case.norm_epsilon)
        self.self_attn = Attention(case)
        self.post_attention_layernorm = nn.RMSNorm(case.dim, eps=case.norm_epsilon)
        self.mlp = FeedForward(case)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Modules are named as Hugging Face names them, less the leading "model."."""

    def __init__(self, case):
        super().__init__()
        self.embed_tokens = nn.Embedding(case.vocab_size, case.dim)
        self.layers = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.norm = nn.RMSNorm(case.dim, eps=case.norm_epsilon)
        self.lm_head = nn.Linear(case.dim, case.vocab_size, bias=False)

    def loss(self, tokens_BS, labels_BS, cos, sin):
        x = self.embed_tokens(tokens_BS)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), labels_BS.flatten(), ignore_index=-100)


def rope(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class TorchContender(protocol.Contender):
    def __init__(self, mode, case, weights, data):
        self.mode, self.case = mode, case
        self.weights = {name.removeprefix("model."): torch.from_numpy(array) for name, array in weights.items()}
        self.data = {name: torch.from_numpy(array) for name, array in data.items()}

    def build(self):
        case = self.case
        self.model = Llama(case)
        self.model.load_state_dict(self.weights)
        self.loss = self.model.loss
        if self.mode == "compile":
            self.loss = torch.compile(self.model.loss, fullgraph=True, dynamic=False)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=case.learning_rate, betas=(case.beta1, case.beta2), eps=case.epsilon,
            weight_decay=case.weight_decay, fused=True)
        return None if self.mode == "compile" else 0.0

    def step(self, batch):
        data = self.data
        loss = self.loss(data["tokens"][batch], data["labels"][batch], data["rope.cos"], data["rope.sin"])
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.case.max_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item(), grad_norm.item()

    def state(self):
        states = list(self.optimizer.state.values())
        return ([p.detach().numpy() for p in self.model.parameters()], [s["exp_avg"].numpy() for s in states],
                [s["exp_avg_sq"].numpy() for s in states])


def main():
    answers = protocol.take_standard_output()
    folder, mode = sys.argv[1:]
    case, weights, data = protocol.load(folder)
    torch.set_num_threads(case.threads)
    protocol.serve(answers, TorchContender(mode, case, weights, data), len(data["tokens"]))


if __name__ == "__main__":
    main()
