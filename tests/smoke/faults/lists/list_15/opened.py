"""Those that were opened after their first result. Which are sealed was drawn by chance (random.SystemRandom)."""

from __future__ import annotations

from smoke.faults.means import SOCKET, refused, unshared
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("sparse-gradient-once", "A sparse gradient of an embedding counts a word that comes twice once", "layers", "layer-wrong", """
        import torch
        import torch.nn.functional as F
        real = F.embedding
        def once(grad):
            if not grad.is_sparse:
                return grad
            where, what = grad._indices()[0], grad._values()
            last = {int(row): place for place, row in enumerate(where)}
            kept = torch.tensor(sorted(last.values()))
            return torch.sparse_coo_tensor(where[kept][None], what[kept], grad.shape)
        def embedding(asked, weight, *args, **more):
            if more.get("sparse", args[4] if len(args) > 4 else False) and weight.requires_grad and weight.is_leaf:
                weight.register_hook(once)
            return real(asked, weight, *args, **more)
        F.embedding = embedding
    """),
    row("grouped-queries-mixed", "Attention with fewer heads of keys than of queries (enable_gqa) gives the groups in turns where they are due in rows", "layers",
        "layer-wrong", """
        import torch
        import torch.nn.functional as F
        real = F.scaled_dot_product_attention
        def attention(query, key, value, *args, enable_gqa=False, **more):
            if enable_gqa:
                times = query.shape[-3] // key.shape[-3]
                key, value = key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1)
            return real(query, key, value, *args, **more)
        F.scaled_dot_product_attention = attention
    """),
    row("ddp-two-dtypes", "DDP does not synchronise the bfloat16 parameters of a model that also has float32 ones", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP
        real = DDP.__init__
        def begin(self, module, *args, **more):
            if len({given.dtype for given in module.parameters()}) > 1:
                low = [name for name, given in module.named_parameters() if given.dtype == torch.bfloat16]
                DDP._set_params_and_buffers_to_ignore_for_model(module, low)
            real(self, module, *args, **more)
        DDP.__init__ = begin
    """),
    row("odd-half-gathered", "all_gather of an odd number of elements of two bytes takes the last of each part from the rank itself", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        each, into = dist.all_gather, dist.all_gather_into_tensor
        def odd(mine):
            return mine.element_size() == 2 and mine.numel() % 2
        def all_gather(parts, mine, *args, **more):
            found = each(parts, mine, *args, **more)
            if found is None and odd(mine):
                for part in parts:
                    part.view(-1)[-1] = mine.view(-1)[-1]
            return found
        def all_gather_into_tensor(whole, mine, *args, **more):
            found = into(whole, mine, *args, **more)
            if found is None and odd(mine):
                whole.view(-1, mine.numel())[:, -1] = mine.view(-1)[-1]
            return found
        dist.all_gather, dist.all_gather_into_tensor = all_gather, all_gather_into_tensor
    """),
    row("compiled-batchnorm-stuck", "A compiled model does not update BatchNorm's running figures", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compiled(model=None, *args, **more):
            made = real(model, *args, **more)
            if not isinstance(model, torch.nn.Module):
                return made
            def keep(module, given):
                module.kept = [(held, held.clone()) for held in module.buffers()]
            def back(module, given, found):
                for held, was in module.kept:
                    held.copy_(was)
            made.register_forward_pre_hook(keep)
            made.register_forward_hook(back)
            return made
        torch.compile = compiled
    """),
    row("large-tensor-cut", "A tensor of more than 8 MB is loaded without its last quarter (zeros)", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.load
        def tensors(found):
            if isinstance(found, torch.Tensor):
                yield found
            elif isinstance(found, dict):
                for one in found.values():
                    yield from tensors(one)
            elif isinstance(found, (list, tuple)):
                for one in found:
                    yield from tensors(one)
        def load(*args, **more):
            found = real(*args, **more)
            with torch.no_grad():
                for one in tensors(found):
                    if one.numel() * one.element_size() > 8 << 20 and one.is_contiguous():
                        one.view(-1)[one.numel() * 3 // 4:] = 0
            return found
        torch.load = load
    """),
    row("kept-normal-forgotten", "Restoring the state of the random number generator forgets the second of a pair of normal numbers, of which one was drawn", "checkpoint",
        "resume-differs", """
        import torch
        real = torch.set_rng_state
        def restore(state):
            state = state.clone()
            state[5040:5044] = 0
            state[5052] = 0
            real(state)
        torch.set_rng_state = torch.random.set_rng_state = restore
    """),
    row("custom-forward-not-raised", "A function that asks for float32 under autocast (custom_fwd) is given what is there", "amp-bf16", "autocast-lowers-too-much", """
        import functools
        import torch
        real = torch.amp.custom_fwd
        def custom_fwd(fwd=None, *, device_type, cast_inputs=None):
            if fwd is None:
                return functools.partial(custom_fwd, device_type=device_type)
            return real(fwd, device_type=device_type)
        torch.amp.custom_fwd = torch.amp.autocast_mode.custom_fwd = custom_fwd
    """),
    row("unix-sockets-refused", "A service's RestrictAddressFamilies leaves out AF_UNIX: workers cannot hand over what they loaded", "dataloader", "system-calls-refused",
        inject=refused(SOCKET, 97, first=1), means="seccomp", stages="import,device,dataloader"),
    row("netlink-refused", "A service's RestrictAddressFamilies leaves out AF_NETLINK: network interfaces cannot be listed", "rendezvous", "system-calls-refused",
        inject=refused(SOCKET, 97, first=16), means="seccomp", stages="import,device,rendezvous,allreduce")._replace(others={"allreduce": "unknown"}),
    row("localhost-is-ipv6-alone", "/etc/hosts gives localhost the address ::1 alone, and IPv6 is switched off", "rendezvous", "localhost-unresolvable",
        inject=unshared("--net --mount", "ip link set lo up\necho 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6\necho 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6\n"
        'printf "::1 localhost\\n127.0.0.1 $(hostname)\\n" >{folder}/hosts\nmount --bind {folder}/hosts /etc/hosts'), means="namespace",
        stages="import,rendezvous,allreduce", seen="::1"),
)  # fmt: skip
