-- weft: an example of an administrator's policy: change the numbers. It runs in slurmctld
-- (slurm.conf: JobSubmitPlugins=lua). A site with its own job_submit.lua adds weft_policy and the
-- call in slurm_job_submit.
--
-- No user can avoid the shards. Priorities are different: a job's own script may still set
-- WEFT_PRIORITY. Only the broker can limit a user to a priority (weft.toml, docs/multi-user.md).

-- Most shards (GiB) of one job on a node. A job that requests more than one GPU has would wait
-- forever.
local MOST_SHARDS = 80

-- Shards of a job that requests no GPU memory, in these partitions. In other partitions it gets
-- none. Slurm does not show --gres=none of a job here: such a job gets them too.
local DEFAULT_SHARDS = {}

-- Only these accounts may use priorities below this (more important ones); "*" stands for every
-- account.
local FIRST_PRIORITY_OF_ALL = 0
local IMPORTANT_ACCOUNTS = {}

-- Prefix of generic resources in a request. Slurm 22.05 uses "gres:shard", 24.11 only "gres/shard".
-- Only 24.11 has this constant.
local GRES = slurm.GRES_ALLOW_TASK_SHARING and "gres/" or "gres:"

-- weft's names for priorities.
local PRIORITIES = { high = 0, normal = 5, low = 7, idle = 9 }

-- Slurm's suffixes of a count, and the resources that are a GPU or a part of one.
local SUFFIXES = { [""] = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40, p = 2 ^ 50 }
local GPU_RESOURCES = { gpu = true, shard = true, mps = true }

-- Counts of tasks from here on are Slurm's values for "not set".
local NOT_SAID = 65533

-- Shards in a list of resources, and whether it names a GPU or a part of one. An entry is
-- gres/shard:1K, gres/shard:h100:4, gres:shard=4, shard. Several entries add up.
local function shards_in(list)
    local shards, gpus = 0, false
    for entry in (list or ""):lower():gmatch("[^,%s]+") do
        local words = {}
        for word in entry:gsub("%(.*$", ""):gsub("^gres[:/]", ""):gmatch("[^:=]+") do
            words[#words + 1] = word
        end
        gpus = gpus or GPU_RESOURCES[words[1]] or false
        if words[1] == "shard" then
            local sign, figure, suffix = (#words > 1 and words[#words] or ""):match("^([+-]?)(%d+)(%a?)$")
            local factor = SUFFIXES[suffix]
            -- If the last word is no count, it is a type: one shard of that type.
            local count = factor and tonumber(figure) * factor or 1
            shards = shards + (sign == "-" and math.huge or count)
        end
    end
    return shards, gpus
end

-- The most tasks that may run on one node.
local function tasks_on_a_node(request, job)
    local function said(name)
        local count = tonumber(request[name] or (job and job[name]))
        return count and count > 0 and count < NOT_SAID and count or nil
    end
    -- Each further node has at least one task.
    local of_all = (said("num_tasks") or 1) - (said("min_nodes") or 1) + 1
    return math.max(1, said("ntasks_per_node") or of_all)
end

-- The most shards of the job that may be on one node, and whether it requests GPUs at all.
local function shards_of(request, job)
    local most, gpus = 0, false
    local tasks = tasks_on_a_node(request, job)
    for name, times in pairs({ tres_per_node = 1, tres_per_socket = 1, tres_per_job = 1, tres_per_task = tasks }) do
        local shards, some = shards_in(request[name] or (job and job[name]))
        most, gpus = math.max(most, shards * times), gpus or some
    end
    return most, gpus
end

-- The most important priority that the request asks for: by the option, which the plugin has
-- converted, or by the environment. The plugin removes variables that another job of weft left
-- there.
local function priority_of(request)
    local found = nil
    local function says(text)
        text = (text or ""):lower():match("^%s*(.-)%s*$")
        local level = PRIORITIES[text] or tonumber(text)
        found = level and math.min(level, found or level) or found
    end
    local told = request.spank_job_env or {}
    for at = 0, (request.spank_job_env_size or 0) - 1 do
        says(((told[at] or ""):gsub("^SPANK_", "")):match("^WEFT_PRIORITY=(.*)$"))
    end
    local environment = request.environment
    if environment ~= nil and environment["WEFT_SLURM_JOB"] == nil then
        says(environment["WEFT_PRIORITY"])
    end
    return found
end

-- The partition of the request; for a new job without one, the cluster's default.
local function partition_of(request, job, partitions)
    if request.partition ~= nil or job ~= nil then
        return request.partition or ""
    end
    for name, partition in pairs(partitions or {}) do
        if partition.flag_default == 1 then
            return name
        end
    end
    return ""
end

-- An error line for the user if the job is refused, else nil. `job`: the existing job, if the
-- request changes one.
local function weft_policy(request, job, partitions)
    local shards, gpus = shards_of(request, job)
    if not gpus then
        local default = DEFAULT_SHARDS[partition_of(request, job, partitions)]
        if default ~= nil then
            local gres = request.tres_per_node or (job and job.tres_per_node) or ""
            request.tres_per_node = (gres == "" and "" or gres .. ",") .. GRES .. "shard:" .. default
            shards = default
        end
    end
    if shards > MOST_SHARDS then
        return string.format("%.0f GiB of GPU memory on a node: a job may have %d", shards, MOST_SHARDS)
    end
    local priority = priority_of(request)
    if priority ~= nil and priority < FIRST_PRIORITY_OF_ALL then
        if not (IMPORTANT_ACCOUNTS["*"] or IMPORTANT_ACCOUNTS[request.account or ""]) then
            return string.format("--gpu-priority=%d is not for this account: %d to 9", priority, FIRST_PRIORITY_OF_ALL)
        end
    end
    return nil
end

local function answer(request, job, partitions)
    local why = weft_policy(request, job, partitions)
    if why ~= nil then
        slurm.log_user("weft: %s", why)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_submit(request, partitions, uid)
    return answer(request, nil, partitions)
end

function slurm_job_modify(request, job, partitions, uid)
    return answer(request, job, partitions)
end
