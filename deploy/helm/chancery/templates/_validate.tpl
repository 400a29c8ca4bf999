{{/* Refuses values that would lose data, or that the server would refuse. Each message says what to do. */}}
{{- define "chancery.validate" -}}
{{- include "chancery.validateImage" . -}}
{{- include "chancery.validateReplicas" . -}}
{{- include "chancery.validateConfig" . -}}
{{- include "chancery.validatePorts" . -}}
{{- include "chancery.validateMetrics" . -}}
{{- include "chancery.validateBackup" . -}}
{{- if .Values.console.enabled -}}
{{- fail "console.enabled is true: this version of Chancery has no console; set it to false" -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateImage" -}}
{{- with .Values.image -}}
{{- if not .repository -}}
{{- fail "image.repository is empty: no image of Chancery has been published yet; build one, and set image.registry and image.repository" -}}
{{- end -}}
{{- if and (eq .tag "latest") (not .digest) -}}
{{- fail "image.tag is \"latest\": replicas that restart later could run another version; set a version or image.digest" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateReplicas" -}}
{{- $n := int .Values.replicaCount -}}
{{- if eq (mod $n 2) 0 -}}
{{- fail (printf "replicaCount is %d: an even number of voters tolerates no more failures than %d; set an odd number" $n (sub $n 1)) -}}
{{- end -}}
{{- if and (not .Values.persistence.enabled) (or (gt $n 1) .Values.learners.enabled) -}}
{{- fail "persistence.enabled is false: a replica that moves to another node loses its data, and with a majority of the replicas the cluster loses acknowledged writes; enable it, or use one replica without learners for tests" -}}
{{- end -}}
{{- $name := include "chancery.fullname" . -}}
{{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and $live (not .Values.allowShrink) -}}
{{- $now := int (dig "spec" "replicas" 0 $live) -}}
{{- if lt $n $now -}}
{{- fail (printf "replicaCount is %d, and the StatefulSet %s/%s has %d replicas: the others would remain voters, and the cluster could lose its majority; run `chancery cluster remove` for the replicas %d to %d, the highest first, and then set allowShrink to true" $n .Release.Namespace $name $now (add1 $n) $now) -}}
{{- end -}}
{{- end -}}
{{- $minority := div (sub $n 1) 2 | int -}}
{{- if and (gt $n 1) .Values.podDisruptionBudget.enabled (gt (int .Values.podDisruptionBudget.maxUnavailable) $minority) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %d: of %d replicas, at most %d may be unavailable, or no write can be committed; set a smaller number" (int .Values.podDisruptionBudget.maxUnavailable) $n $minority) -}}
{{- end -}}
{{- $rolling := dig "rollingUpdate" "maxUnavailable" 1 .Values.updateStrategy -}}
{{- if ne (toString $rolling) "1" -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxUnavailable is %v: an update that restarts several replicas at once can leave the cluster without a majority; remove it" $rolling) -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateConfig" -}}
{{- if and .Values.config .Values.existingConfigSecret -}}
{{- fail "config and existingConfigSecret are both set: a replica reads one configuration; set only one of them" -}}
{{- end -}}
{{- if and .Values.secrets.existingSecret .Values.existingConfigSecret -}}
{{- fail "secrets.existingSecret and existingConfigSecret are both set: the chart cannot change the configuration in your Secret; set secrets.key_file there to a file of extraVolumes, and remove secrets.existingSecret" -}}
{{- end -}}
{{- if and .Values.secrets.existingSecret (dig "secrets" "key_file" "" .Values.config) -}}
{{- fail "config.secrets.key_file and secrets.existingSecret are both set: a replica has one key file; set only one of them" -}}
{{- end -}}
{{- $owned := dict
  "store" (list "data_dir")
  "raft" (list "replica_id" "address" "advertise" "join" "peers" "learner" "tls_cert" "tls_key" "tls_ca")
  "xds" (list "address" "tls_cert" "tls_key")
  "admin" (list "address" "tls_cert" "tls_key") -}}
{{- range $section, $keys := .Values.config -}}
{{- range $key, $_ := $keys -}}
{{- if has $key (default list (get $owned $section)) -}}
{{- $instead := ternary (printf "use tls.%s" $section) "remove it" (hasPrefix "tls_" $key) -}}
{{- fail (printf "config.%s.%s is set: the chart sets this key for each replica; %s" $section $key $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validatePorts" -}}
{{- range $port := list "xds" "admin" "raft" -}}
{{- $tls := index $.Values.tls $port -}}
{{- if and $tls.existingSecret $tls.certManager.enabled -}}
{{- fail (printf "tls.%s.existingSecret and tls.%s.certManager.enabled are both set: a port has one certificate; set only one of them" $port $port) -}}
{{- end -}}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) -}}
{{- fail (printf "tls.%s.certManager.issuerRef.name is empty: cert-manager needs an issuer; name an Issuer or ClusterIssuer" $port) -}}
{{- end -}}
{{- $isOpen := or $tls.existingSecret $tls.certManager.enabled $.Values.existingConfigSecret (dig $port "allow_plaintext" false $.Values.config) -}}
{{- if not $isOpen -}}
{{- fail (printf "the %s port has no TLS: its traffic would cross the network unencrypted and unauthenticated; set tls.%s.existingSecret or tls.%s.certManager, or config.%s.allow_plaintext to true if the network is trusted" $port $port $port $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateMetrics" -}}
{{- with .Values.metrics -}}
{{- if .serviceMonitor.enabled -}}
{{- if and $.Values.networkPolicy.enabled (not $.Values.networkPolicy.metricsFrom) -}}
{{- fail "metrics.serviceMonitor.enabled is true, and networkPolicy.metricsFrom is empty: Prometheus could not connect; set metricsFrom to the pods of Prometheus" -}}
{{- end -}}
{{- if and (include "chancery.adminCertificates" $) (not $.Values.tls.admin.certManager.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled is true, and the admin port accepts certificates of tls.admin.existingSecret: the chart has no certificate for Prometheus; use tls.admin.certManager, or define a ServiceMonitor in extraObjects" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.validateBackup" -}}
{{- if and .Values.backup.enabled (include "chancery.adminCertificates" .) (not (include "chancery.operatorSecret" .)) -}}
{{- fail "backup.enabled is true, and the admin port accepts certificates of its CA: the backup needs the certificate of an operator; set backup.existingSecret, or use tls.admin.certManager" -}}
{{- end -}}
{{- end -}}
