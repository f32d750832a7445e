-- weft: an administrator's policy. Runs in slurmctld (slurm.conf: JobSubmitPlugins=lua). An example:
-- change the numbers. A site that has a job_submit.lua of its own adds weft_policy and the call in
-- slurm_job_submit.
--
-- No user gets round the shards. A priority is another thing: a job's own script may still set
-- WEFT_PRIORITY. Only the broker holds a user to one (weft.toml, docs/multi-user.md).

-- Most shards (GiB) of one job on a node. More than one GPU has would wait for ever.
local MOST_SHARDS = 80

-- Shards of a job that asks for GPU memory in no way, in these partitions. Elsewhere it gets none.
-- Slurm tells nobody of a job's --gres=none: such a job gets them, too.
local DEFAULT_SHARDS = {}

-- Priorities below this (more important ones) are for these accounts alone; "*" is every one.
local FIRST_PRIORITY_OF_ALL = 0
local IMPORTANT_ACCOUNTS = {}

-- How a request names generic resources. Slurm 22.05 knows "gres:shard", 24.11 "gres/shard" alone.
-- They differ in this constant, too.
local GRES = slurm.GRES_ALLOW_TASK_SHARING and "gres/" or "gres:"

-- The names that weft has for priorities.
local PRIORITIES = { high = 0, normal = 5, low = 7, idle = 9 }

-- Slurm's suffixes of a count, and the shares of a GPU that a job can ask for.
local SUFFIXES = { [""] = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40, p = 2 ^ 50 }
local GPU_RESOURCES = { gpu = true, shard = true, mps = true }

-- From here on a count of tasks is one of Slurm's words for "not said".
local NOT_SAID = 65533

-- Shards in a list of resources, and whether it names a GPU or a part of one. An entry is
-- gres/shard:1K, gres/shard:h100:4, gres:shard=4, shard. Several add up.
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
            -- A last word that is no count is a type: one shard of it.
            local count = factor and tonumber(figure) * factor or 1
            shards = shards + (sign == "-" and math.huge or count)
        end
    end
    return shards, gpus
end

-- Most tasks that may come to be on one node.
local function tasks_on_a_node(request, job)
    local function said(name)
        local count = tonumber(request[name] or (job and job[name]))
        return count and count > 0 and count < NOT_SAID and count or nil
    end
    -- Each further node has one task at least.
    local of_all = (said("num_tasks") or 1) - (said("min_nodes") or 1) + 1
    return math.max(1, said("ntasks_per_node") or of_all)
end

-- Most shards of the job that may come to be on one node, and whether it asks for GPUs at all.
local function shards_of(request, job)
    local most, gpus = 0, false
    local tasks = tasks_on_a_node(request, job)
    for name, times in pairs({ tres_per_node = 1, tres_per_socket = 1, tres_per_job = 1, tres_per_task = tasks }) do
        local shards, some = shards_in(request[name] or (job and job[name]))
        most, gpus = math.max(most, shards * times), gpus or some
    end
    return most, gpus
end

-- The most important priority that the request asks for: by the option, in weft's own form, or by
-- the environment. The plugin takes away a variable that a job of weft left there.
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

-- The partition that the request names, or for a new job the cluster's own choice.
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

-- A line for the user where the job may not be, else nil. `job`: what is there already, if the
-- request changes a job.
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
